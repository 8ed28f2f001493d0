"""Lowering: which recorded ops become one kernel, what it moves, and that the trace stays a legal one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.cost.lower import lower
from emulator.errors import InputError
from emulator.trace.check import faults
from emulator.trace.expand import rows
from emulator.trace.schema import BlockUse, Group, Mesh, Op, PerRank, Program, Trace

MB = 1_000_000


def op(number, op_class, reads=(), writes=(), **more):
    """A compute op; reads and writes are storages of 1 MB, or (storage, bytes)."""
    sized = [[access if isinstance(access, tuple) else (access, MB) for access in side] for side in (reads, writes)]
    return Op(
        id=number,
        kind="compute",
        op_class=op_class,
        reads=sized[0],
        writes=sized[1],
        bytes_read=sum(size for _, size in sized[0]),
        bytes_written=sum(size for _, size in sized[1]),
        **{"phase": "forward", "layer": 0, "dtype": "bfloat16", **more},
    )


def comm(number, reads=(), writes=(), **more):
    return Op(
        id=number,
        kind="collective",
        collective="all_reduce",
        group="all",
        bytes_in=MB,
        bytes_out=MB,
        dtype="bfloat16",
        reads=[(s, MB) for s in reads],
        writes=[(s, MB) for s in writes],
        **more,
    )


def trace(*ops, blocks=None, ranks=1, programs=None):
    return Trace(
        mesh=Mesh(axes=["dp"], shape=[ranks]),
        groups={"all": Group(axes=["dp"])},
        blocks=blocks or {},
        programs=programs or [Program(ops=list(ops))],
        ranks=[(ranks, 0)],
    )


def compiled(*ops, **more):
    return lower(trace(*ops, **more), "compile").trace.programs[0].ops


def kernels(ops):
    return [item.sources or [item.id] for item in ops if isinstance(item, Op) and item.kind == "compute"]


def test_a_norm_is_one_kernel_that_reads_its_input_once():
    # square 10->11, mean 11->12, rsqrt 12->13, scale 10,13->14, weight 14,w->15; then a matmul of 15.
    done = compiled(
        op(0, "norm", [10], [11], flops=1),
        op(1, "norm", [11], [(12, 4)], flops=2),
        op(2, "norm", [(12, 4)], [(13, 4)]),
        op(3, "pointwise", [10, (13, 4)], [14], flops=3),
        op(4, "pointwise", [14, (7, 8)], [15]),
        op(5, "gemm", [15, 8], [16]),
    )
    fused = done[0]
    assert kernels(done) == [[0, 1, 2, 3, 4], [5]]
    assert fused.name == "fused[norm x3 + pointwise x2]"
    assert fused.reads == [(10, MB), (7, 8)]  # the input once, the weight; 11 to 14 exist no more
    assert fused.writes == [(15, MB)]
    assert (fused.bytes_read, fused.bytes_written, fused.flops) == (MB + 8, MB, 6)
    assert fused.op_class == "pointwise"  # moved 4 MB, the norm ops 3 MB


def test_what_the_backward_pass_reads_is_still_written():
    done = compiled(
        op(0, "activation", [1], [2]),
        op(1, "pointwise", [2, 3], [4]),
        op(2, "gemm", [4], [5]),
        op(3, "gemm", [2], [6], phase="backward"),
    )
    assert kernels(done) == [[0, 1], [2], [3]]
    assert done[0].writes == [(2, MB), (4, MB)]


def test_halves_of_a_storage_add_up_to_the_whole():
    half = MB // 2
    done = compiled(
        op(0, "gemm", [1], [2]),
        op(1, "pointwise", [(2, half)], [(3, half)]),  # negate one half
        op(2, "copy", [(3, half), (2, half)], [4]),  # put it behind the other
        op(3, "pointwise", [4, 2], [5]),
        op(4, "gemm", [5], [6]),
    )
    assert kernels(done) == [[0], [1, 2, 3], [4]]
    assert done[1].reads == [(2, MB)]


def test_an_update_in_place_reads_and_writes_once():
    done = compiled(op(0, "pointwise", [1], [1]), op(1, "pointwise", [1, 2], [1]), op(2, "gemm", [1], [3]))
    assert done[0].reads == [(1, MB), (2, MB)]
    assert done[0].writes == [(1, MB)]


def test_an_update_of_what_lives_on_is_written_even_if_read_here():
    done = compiled(op(0, "pointwise", [1], [1]), op(1, "pointwise", [1], [2]))
    assert done[0].writes == [(1, MB), (2, MB)]


def test_two_readers_of_one_gradient_share_a_kernel():
    square = {"shapes": [[1000, 500]]}
    done = compiled(
        op(0, "gemm", [1], [2]),
        op(1, "pointwise", [2, 3], [4], **square),
        op(2, "gemm", [9], [10]),
        op(3, "pointwise", [2, 5], [6], **square),
        op(4, "gemm", [4, 6], [7]),
    )
    assert [1, 3] in kernels(done)
    assert next(o for o in done if o.sources).reads == [(2, MB), (3, MB), (5, MB)]


def test_a_kernel_never_waits_for_itself():
    # 0 -> matmul 1 -> 2, and 0 -> 2: {0, 2} would need the matmul between its members.
    done = compiled(op(0, "norm", [1], [2]), op(1, "gemm", [2], [3]), op(2, "pointwise", [2, 3], [4]))
    assert kernels(done) == [[0], [1], [2]]


def test_two_kernels_join_only_if_neither_waits_for_the_other():
    # 3 joins 0 and 4 joins both. 1, too, hands its result to 4, but 3 needs 1 through the matmul.
    done = compiled(
        op(0, "pointwise", [10], [1]),
        op(1, "pointwise", [11], [2]),
        op(2, "gemm", [2], [3]),
        op(3, "pointwise", [1, 3], [(4, 2 * MB)]),
        op(4, "pointwise", [(4, 2 * MB), 2], [5]),
    )
    assert kernels(done) == [[1], [2], [0, 3, 4]]


def test_a_kernel_reads_before_its_input_is_overwritten():
    done = compiled(op(0, "pointwise", [5], [6]), op(1, "gemm", [1], [5]), op(2, "pointwise", [6], [7]))
    assert kernels(done) == [[0, 2], [1]]


def test_consumers_recorded_between_members_move_behind_the_kernel():
    done = compiled(
        op(0, "pointwise", [1], [2]),
        op(1, "gemm", [2], [3]),
        op(2, "pointwise", [2], [4]),
        op(3, "gemm", [4], [5], deps=[0]),
    )
    assert kernels(done) == [[0, 2], [1], [3]]
    assert done[2].deps == [2]  # op 0 lives on in the kernel that took the id of its last member


def test_a_sum_to_one_number_ends_its_kernel():
    large = 4 * MB
    done = compiled(
        op(0, "norm", [(1, large)], [(2, large)]),
        op(1, "norm", [(2, large)], [(3, 4)]),
        op(2, "pointwise", [(2, large), (3, 4)], [(4, large)]),
    )
    assert kernels(done) == [[0, 1], [2]]


@pytest.mark.parametrize(
    "between",
    [
        op(9, "gemm", [2], [3], stream="side", deps=[0]),
        comm(9, deps=[0], stream="side", is_async=True),
        comm(9, deps=[0]),
        Op(id=9, kind="wait", deps=[7]),
        Op(id=9, kind="host_sync", deps=[0]),
        Op(id=9, kind="compute", op_class="gemm", name="of unknown storages"),
        BlockUse(block="layer"),
    ],
    ids=["another stream", "asynchronous collective", "collective", "wait", "host", "no storages", "block"],
)
def test_what_ends_a_kernel(between):
    before = op(7, "pointwise", [8], [8], stream="side")
    done = compiled(
        before, op(0, "pointwise", [1], [2]), between, op(1, "pointwise", [2], [4]), blocks={"layer": [op(0, "gemm")]}
    )
    assert kernels(done)[:2] == [[7], [0]]
    assert kernels(done)[-1] == [1]


def test_another_stream_of_a_block_ends_a_kernel_of_the_program():
    block = {"side": [op(0, "gemm", [[0, 2, ""]], [3], stream="side", deps=[[0, 0, ""]])]}
    done = compiled(op(0, "norm", [1], [2]), op(1, "norm", [2], [4]), BlockUse(block="side"), blocks=block)
    assert kernels(done) == [[0], [1]]


@pytest.mark.parametrize("tags", [{"phase": "backward"}, {"layer": 1}, {"microbatch": 1}, {"stage": 1}])
def test_kernels_stay_within_one_layer_and_phase(tags):
    assert kernels(compiled(op(0, "norm", [1], [2]), op(1, "norm", [2], [3], **tags))) == [[0], [1]]


@pytest.mark.parametrize(
    ("special", "note"),
    [
        ({"duration": 1e-3}, "measured time"),
        ({"bytes_read": PerRank(axes=["dp"], values=[1.0])}, "size differs between ranks"),
        ({"reads": [], "writes": []}, "no recorded reads and writes"),
    ],
)
def test_ops_that_cannot_be_fused_are_counted(special, note):
    second = op(1, "pointwise", [2], [3])
    for key, value in special.items():
        setattr(second, key, value)
    lowered = lower(trace(op(0, "pointwise", [1], [2]), second), "compile")
    assert kernels(lowered.trace.programs[0].ops) == [[0], [1]]
    assert lowered.notes == {note: 1}


@pytest.mark.parametrize(
    "name", ["fsdp::split_with_sizes_copy", "fsdp.chunk_cat.default", "aten.embedding.default", "embedding"]
)
def test_packing_and_look_ups_are_kernels_of_their_own(name):
    assert kernels(compiled(op(0, "copy", [1], [2], name=name), op(1, "pointwise", [2], [3]))) == [[0], [1]]


def test_memory_follows_the_kernels():
    done = compiled(
        Op(id=10, kind="alloc", storage=2, bytes=MB),
        op(0, "pointwise", [1], [2]),
        Op(id=11, kind="alloc", storage=3, bytes=MB),
        op(1, "pointwise", [2], [3], deps=[0]),
        Op(id=12, kind="free", storage=2, bytes=MB, deps=[1]),
        Op(id=13, kind="free", storage=1, bytes=MB),
        op(2, "pointwise", [3], [4]),
        Op(id=14, kind="free", storage=3, bytes=MB),
    )
    # 2 and 3 are never in memory; 1, freed between the members, is freed behind the kernel that reads it.
    assert [item.id for item in done] == [2, 13]
    assert done[0].reads == [(1, MB)]


def test_what_is_allocated_and_not_freed_outlives_the_step():
    done = compiled(
        Op(id=10, kind="alloc", storage=2, bytes=MB), op(0, "pointwise", [1], [2]), op(1, "pointwise", [2], [3])
    )
    assert done[-1].writes == [(2, MB), (3, MB)]


def test_what_another_instance_frees_may_still_never_be_in_memory():
    """Storage 2 lives until the next layer has begun, as a local variable does; its only reader is its own kernel."""
    layer = [
        Op(id=10, kind="free", storage=[1, 2], bytes=MB),
        Op(id=11, kind="alloc", storage=2, bytes=MB),
        op(0, "pointwise", [1], [2]),
        op(1, "pointwise", [2], [3]),
    ]
    lowered = lower(trace(BlockUse(block="layer", repeat=3), blocks={"layer": layer}), "compile").trace
    assert [(item.kind, item.sources) for item in lowered.blocks["layer"]] == [("compute", [0, 1])]


def test_programs_number_their_storages_each_for_itself():
    """Storage 2 is 1 MB in one program and 8 MB in the other: an expanded view reads no more than there is."""
    programs = [
        Program([op(0, "pointwise", [1], [(2, size)]), op(1, "pointwise", [(2, 9 * MB)], [3])]) for size in (MB, 8 * MB)
    ]
    made = trace(programs=programs, ranks=2)
    made.ranks = [(1, 0), (1, 1)]
    small, large = (program.ops[0] for program in lower(made, "compile").trace.programs)
    assert (small.bytes_read, large.bytes_read) == (MB, MB)
    assert small.sources == large.sources == [0, 1]


def test_references_across_blocks_find_the_kernel_and_keep_its_storages():
    blocks = {
        "forward": [
            op(0, "norm", [[1, 3]], [2], deps=[[1, 1]]),
            op(1, "norm", [2], [3]),
            op(2, "gemm", [3], [4]),
        ],
        "backward": [
            op(0, "norm", [[0, 2, "forward"]], [1], phase="backward", deps=[[0, 0, "forward"], [0, 5, ""]]),
            op(1, "norm", [1, [0, 5, ""]], [2], phase="backward"),
        ],
    }
    lowered = lower(
        trace(
            op(4, "copy", [1], [5]),
            op(5, "copy", [5], [6]),
            op(6, "copy", [6], [7]),
            BlockUse(block="forward", repeat=3, set={"layer": "0+1"}),
            BlockUse(block="backward", repeat=3, set={"layer": "2-1"}),
            blocks=blocks,
            ranks=2,
        ),
        "compile",
    )
    assert (lowered.kernels_recorded, lowered.kernels_timed) == (2 * (3 + 9 + 6), 2 * (1 + 6 + 3))
    forward, backward = lowered.trace.blocks["forward"][0], lowered.trace.blocks["backward"][0]
    assert forward.sources == [0, 1]
    assert forward.deps == [[1, 1]]
    assert forward.writes == [(2, MB), (3, MB)]  # 2 is read by the backward block, 3 by the next instance
    assert backward.deps == [[0, 1, "forward"], [0, 6, ""]]
    assert lowered.trace.programs[0].ops[0].writes == [(5, MB), (7, MB)]
    assert not list(faults(lowered.trace))


def test_a_program_level_reference_that_programs_disagree_on_is_left_to_the_stream():
    block = {"layer": [op(0, "norm", [1], [2], deps=[[0, 0, ""]])]}
    alone = Program(ops=[op(0, "norm", [1], [2]), BlockUse(block="layer")])
    fused = Program(ops=[op(0, "norm", [1], [2]), op(1, "norm", [2], [3]), BlockUse(block="layer")])
    lowered = lower(trace(blocks=block, programs=[alone, fused]), "compile").trace
    assert lowered.blocks["layer"][0].deps == []
    assert kernels(lowered.programs[1].ops) == [[0, 1]]


def test_lowering_keeps_tags_and_takes_one_launch():
    done = compiled(
        op(0, "norm", [1], [2], module="layers.0.norm", host_seconds=3e-6),
        op(1, "norm", [2], [3], module="layers.0.ffn.act", host_seconds=5e-6),
    )
    assert (done[0].module, done[0].layer, done[0].phase, done[0].host_seconds) == ("layers.0", 0, "forward", 5e-6)


def test_eager_is_the_trace_itself():
    recorded = trace(op(0, "norm", [1], [2]), op(1, "norm", [2], [3]))
    lowered = lower(recorded, "eager")
    assert lowered.trace is recorded
    assert (lowered.kernels_recorded, lowered.kernels_timed) == (2, 2)


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="unknown lowering 'te'; known: eager, compile"):
        lower(trace(), "te")


CLASSES = ("gemm", "norm", "pointwise", "copy", "activation")


@st.composite
def programs(draw):
    """Random steps on two streams; whoever uses a storage of the other stream waits for its writer's stream."""
    ops: list[Op] = []
    writer: dict[int, tuple[int, str]] = {}
    last: dict[str, int] = {}
    for number in range(draw(st.integers(2, 24))):
        stream = draw(st.sampled_from(["compute", "compute", "compute", "side"]))
        known = sorted(writer)
        reads = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        writes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=2, unique=True))
        other = "side" if stream == "compute" else "compute"
        deps = [last[other]] if other in last else []
        made = op(number, draw(st.sampled_from(CLASSES)), reads, writes, stream=stream, deps=deps, flops=number + 1)
        made.layer = draw(st.sampled_from([0, 0, 0, 0, 1]))
        ops.append(made)
        last[stream] = number
        writer.update(dict.fromkeys(writes, (number, stream)))
    return ops


@st.composite
def one_stream(draw):
    """Random steps on one stream: longer chances for groups to cross each other."""
    ops = []
    for number in range(draw(st.integers(2, 30))):
        reads = draw(st.lists(st.integers(0, max(number, 1)), max_size=3, unique=True))
        ops.append(op(number, draw(st.sampled_from(CLASSES)), reads, [number + 1], flops=number + 1))
    return ops


def touches(item):
    return {s for s, _ in item.reads}, {s for s, _ in item.writes}


@settings(max_examples=150, deadline=None)
@given(st.one_of(programs(), one_stream()))
def test_a_compiled_trace_is_legal_and_never_moves_more(ops):
    recorded = trace(*ops)
    lowered = lower(recorded, "compile")
    done = lowered.trace.programs[0].ops
    # Nothing lost, nothing done twice, the same arithmetic, no more traffic.
    assert sorted(i for members in kernels(done) for i in members) == [o.id for o in ops]
    assert sum(o.flops for o in done) == sum(o.flops for o in ops)
    assert sum(o.bytes_read for o in done) <= sum(o.bytes_read for o in ops)
    assert sum(o.bytes_written for o in done) <= sum(o.bytes_written for o in ops)
    assert lowered.kernels_timed == len(done)
    # The order is one in which every op finds what it found in the recorded one: conflicting accesses keep theirs.
    kernel_of = {i: place for place, members in enumerate(kernels(done)) for i in members}
    for later in ops:
        for earlier in ops[: later.id]:
            (read_a, write_a), (read_b, write_b) = touches(earlier), touches(later)
            if write_a & (read_b | write_b) or read_a & write_b:
                assert kernel_of[earlier.id] <= kernel_of[later.id]
    # Whoever waited for a stream to have come to an op still waits for all that lay before it there.
    place = {o.id: k for k, o in enumerate(done)}
    for item in done:
        for member in item.sources or [item.id]:
            for dep in ops[member].deps:
                awaited = [o.id for o in ops if o.stream == ops[dep].stream and o.id <= dep]
                covered = max(place[d] for d in item.deps if done[place[d]].stream == ops[dep].stream)
                assert max(kernel_of[i] for i in awaited) <= covered
    assert len(rows(lowered.trace, 0)) == len(done)
    assert not list(faults(lowered.trace))
