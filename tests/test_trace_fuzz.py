"""Whatever is done to a trace file: it is refused in one line, or it can be lowered and replayed."""

from __future__ import annotations

import copy
import json

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.api import run
from emulator.errors import EmuError, InputError
from emulator.replay.simulate import Options
from emulator.trace import io
from emulator.trace.check import faults, load
from emulator.trace.schema import Attention, BlockUse, Group, Op, PerRank
from tests.jobs import collective, compute, job, recv, replay, send, star, wait

ATTENTION = Attention(batch=1, heads=4, kv_heads=2, head_dim=8, query_length=16, key_length=16, causal=True)


def good():
    """A trace with a bit of everything: stages, blocks, per-rank numbers, uneven parts, storages, attention."""
    layer = [
        compute(0, None, op_class="attention", flops=1e6, dtype="bfloat16", attention=ATTENTION, shapes=[[4, 8]],
                reads=[([1, 1], 64), ([0, 9, ""], 64)], writes=[(1, 64)]),
        compute(1, None, op_class="pointwise", bytes_read=64, reads=[(1, 64)], writes=[(2, 64)], dtype="bfloat16"),
        collective(2, "all_gather", "tp", 64, deps=[1], is_async=True),
        wait(3, 2, [1, 2]),
    ]  # fmt: skip
    exchange = collective(
        10, "all_to_all", "tp", 0, splits_in=PerRank(["tp"], [[4, 8], [2, 6]]), splits_out=[PerRank(["tp"], [4, 8]), 2]
    )
    exchange.splits_out = PerRank(["tp"], [[4, 2], [8, 6]])
    uses = [BlockUse("layer", 2, {"layer": "0+1", "microbatch": 0})]
    first = [compute(9, 1e-3), *uses, send(3, {"pp": 1}, 8, tag=3), exchange, wait(11, 10), compute(12, 1e-4)]
    last = [
        compute(9, PerRank(["tp"], [1e-3, 2e-3]), host_seconds=1e-5), *uses,
        recv(3, {"pp": -1}, 8, tag=3), exchange, wait(11, 10), collective(13, "all_reduce", "odd", 16),
    ]  # fmt: skip
    trace = job(
        {"pp": 2, "tp": 2}, first, last, ranks=[(2, 0), (2, 1)], blocks={"layer": layer},
        groups={"tp": Group(axes=["tp"]), "odd": Group(ranks=[[3, 2]])},
    )  # fmt: skip
    trace.meta.resident = {"weights": 64, "gradients": PerRank(["pp"], [1, 2])}
    return json.loads(b"".join(io.encode(trace)))


def leaves(value, path=()):
    """Paths to everything in a document."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))


GOOD = good()
PATHS = list(leaves(GOOD))
ODD = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 2, 3, 7, 10**12, 2**53, 2**63, 10**40, -0.0, 0.5, 1e300, "", "x", "tp", "0+1"),
        *([], [0], [0, 1], [0, "x"], [0, 1, "nope"], [0, 1, ""], [1, 0, "layer"], [[]], {}, {"pp": 1}),
        *({"axes": ["tp"], "values": [8, 16]}, {"axes": [], "values": 1}, {"axes": ["zz"], "values": [1, 2]}),
        *({"axes": ["pp", "tp"], "values": [[8, 8], [8, 8]]}, {"axes": ["tp"], "values": ["a", None]}),
        *("send", "recv", "wait", "host_sync", "alloc", "free", "collective", "compute", "all_to_all", "odd"),
    ]
)


@st.composite
def mutations(draw):
    """The good document with one to three values replaced, dropped, doubled or exchanged."""
    document = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(PATHS))
        value = document
        try:
            for key in parents:
                value = value[key]
            action = draw(st.sampled_from(["replace", "replace", "replace", "drop", "double", "copy"]))
            if action == "drop":
                del value[last]
            elif action == "double" and isinstance(value, list):
                value.insert(last, copy.deepcopy(value[last]))
            elif action == "copy":
                source = document
                for key in draw(st.sampled_from(PATHS)):
                    source = source[key]
                value[last] = copy.deepcopy(source)
            else:
                value[last] = draw(ODD)
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            pass
    return document


@given(mutations())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_changed_trace_is_refused_or_runs(tmp_path_factory, document):
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_bytes(msgspec.json.encode(document))
    try:
        trace = load(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    for options in ({}, {"options": Options(folding=False, jump_repeats=False), "lowering": "eager"}):
        try:
            assert run(trace, "fattree", **options).step_seconds > 0
        except EmuError as error:
            assert "\n" not in str(error)


def test_the_document_that_is_changed_runs(tmp_path):
    (tmp_path / "t.json").write_bytes(msgspec.json.encode(GOOD))
    assert run(load(tmp_path / "t.json"), "fattree").step_seconds > 0


KINDS = ("compute", "wait", "host_sync", "collective", "send", "recv")


def facing(steps, rank):
    """A program of two ranks that face each other: where one sends the other receives."""
    ops = []
    for i, (kind, deps, stream, batch) in enumerate(steps):
        if kind == "collective":
            ops.append(collective(i, "all_reduce", "dp", 8, stream=stream, deps=deps))
        elif kind in ("send", "recv"):
            made = send if (kind == "send") == (rank == 0) else recv
            ops.append(made(i, 1 - rank, 8, stream=stream, deps=deps, batch=batch))
        else:
            ops.append(Op(id=i, kind=kind, stream=stream, deps=deps, duration=1e-3 if kind == "compute" else None))
    return ops


@given(
    st.integers(1, 7).flatmap(
        lambda count: st.lists(
            st.tuples(
                st.sampled_from(KINDS),
                st.lists(st.integers(0, count - 1), max_size=2),
                st.sampled_from("ab"),
                st.sampled_from([None, None, 1, 2]),
            ),
            min_size=count,
            max_size=count,
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_a_trace_without_faults_runs_to_its_end(tmp_path_factory, steps):
    """Whatever waits for what: ranks that agree in their order stop only where one of them waits for itself."""
    trace = job({"dp": 2}, facing(steps, 0), facing(steps, 1))
    if not list(faults(trace)):
        replay(trace, star(tmp_path_factory.getbasetemp(), 2))
