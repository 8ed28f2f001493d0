"""The fake world: counts, bytes and FLOPs of a job that does not fit on this machine, and its stream plan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from emulator.capture.command import record_command
from emulator.cost.attention import attention_flops
from emulator.errors import InputError
from emulator.trace import check
from emulator.trace.schema import Attention, Op, Trace

pytestmark = [pytest.mark.torch, pytest.mark.timeout(100)]

WORKLOAD = "workloads/llama.py"
L, WIDTH, LENGTH, FSDP, TP = 2, 4096, 8192, 4, 8


def fake(tmp_path: Path, *arguments: str, world: int) -> Trace:
    record_command(tmp_path / "t.json", WORKLOAD, arguments, world=world)
    return check.load(tmp_path / "t.json")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two layers of the 8B model on 32 ranks."""
    arguments = ("--model", "8b", "--layers", str(L), "--fsdp", str(FSDP), "--tp", str(TP))
    return fake(tmp_path_factory.mktemp("fake"), *arguments, world=FSDP * TP)


@pytest.fixture(scope="module")
def ops(trace: Trace) -> list[Op]:
    (program,) = trace.programs
    return [op for op in program.ops if isinstance(op, Op)]


def test_the_world_is_one_program_on_the_mesh(trace: Trace) -> None:
    assert (trace.mesh.axes, trace.mesh.shape) == (["fsdp", "tp"], [FSDP, TP])
    assert trace.ranks == [(FSDP * TP, 0)]
    assert {name: group.axes for name, group in trace.groups.items()} == {"fsdp": ["fsdp"], "tp": ["tp"]}
    assert trace.meta.source == "torch-fake"


def test_collectives_are_as_many_as_the_formulas_say(ops: list[Op]) -> None:
    counts = Counter((op.group, op.collective) for op in ops if op.kind == "collective")
    assert counts == {
        ("fsdp", "all_gather"): 2 * L + 1,
        ("fsdp", "reduce_scatter"): L + 1,
        ("tp", "all_gather"): 4 * L + 2,
        ("tp", "reduce_scatter"): 4 * L + 2,
        ("tp", "all_reduce"): 2 * L + 4,
    }


def test_collectives_carry_what_the_shapes_say(trace: Trace, ops: list[Op]) -> None:
    activation = LENGTH * WIDTH * 2  # one sequence, bfloat16
    tensor = [op for op in ops if op.group == "tp" and op.collective != "all_reduce"]
    assert {max(op.bytes_in, op.bytes_out) for op in tensor} == {activation}
    assert {min(op.bytes_in, op.bytes_out) for op in tensor} == {activation // TP}
    small = [op.bytes_in for op in ops if op.collective == "all_reduce"]
    assert max(small) <= LENGTH * 4  # per token a float32, or a norm's weight gradient
    reduced = sum(op.bytes_in for op in ops if op.group == "fsdp" and op.collective == "reduce_scatter")
    norms = (2 * L + 1) * WIDTH
    per_rank = (trace.meta.params - norms) / TP + norms  # norms are whole on every tensor-parallel rank
    assert reduced == 4 * per_rank  # float32 reduction
    assert {op.dtype for op in ops if op.collective == "reduce_scatter" and op.group == "fsdp"} == {"float32"}


def test_matmul_flops_are_six_n_t_and_attention_is_its_closed_form(trace: Trace, ops: list[Op]) -> None:
    counted = trace.meta.params - 128256 * WIDTH
    expected = 6 * counted * trace.meta.tokens_per_step / trace.world_size
    gemms = sum(op.flops for op in ops if op.op_class == "gemm")
    assert gemms == pytest.approx(expected, rel=0.01)  # the norms' weights are in N and do no matmul
    shape = {"batch": 1, "heads": 32 // TP, "kv_heads": 8 // TP, "head_dim": 128, "query_length": LENGTH}
    forward = Attention(**shape, key_length=LENGTH, causal=True)
    backward = Attention(**shape, key_length=LENGTH, causal=True, backward=True)
    assert [op.attention for op in ops if op.op_class == "attention"] == [forward] * L + [backward] * L
    flops = sum(op.flops for op in ops if op.op_class == "attention")
    assert flops == L * (attention_flops(forward) + attention_flops(backward))
    assert trace.meta.model_flops == pytest.approx((flops + expected) * trace.world_size)


def test_parameters_and_optimizer_state_are_sharded(trace: Trace) -> None:
    norms = (2 * L + 1) * WIDTH
    shard = 2 * ((trace.meta.params - norms) / TP + norms) / FSDP
    assert trace.meta.resident["parameter"] == shard
    assert trace.meta.resident["optimizer"] == pytest.approx(2 * shard, rel=1e-6)  # and a step counter each


def test_no_data_flows_between_streams_without_a_wait(trace: Trace) -> None:
    assert "data_dependencies_without_a_wait" not in trace.meta.notes
    assert "waits_unmatched" not in trace.meta.notes
    assert "communication_ops_skipped" not in trace.meta.notes


def test_backward_gathers_the_next_layer_before_it_computes_this_one(ops: list[Op]) -> None:
    """FSDP2's prefetch: the all-gather is issued ahead of a layer's matmuls and waited for after them."""
    gathers = [op for op in ops if op.group == "fsdp" and op.collective == "all_gather" and op.phase == "backward"]
    assert {op.stream for op in gathers} == {"fsdp.all_gather"}
    prefetch = gathers[-1]
    wait = next(op for op in ops if op.stream == "compute" and prefetch.id in op.deps)
    between = [op for op in ops[prefetch.id : wait.id] if op.op_class == "gemm" and op.stream == "compute"]
    assert len(between) == 14  # 7 matmuls of a layer, each with two gradients
    scatters = [op for op in ops if op.group == "fsdp" and op.collective == "reduce_scatter"]
    assert {op.stream for op in scatters} == {"fsdp.reduce_scatter"}


def test_tensor_parallelism_without_sequence_parallelism_has_two_and_two_all_reduces(tmp_path: Path) -> None:
    trace = fake(tmp_path, "--tp", "2", "--no-sp", "--layers", "2", world=2)
    inside = [op for op in trace.programs[0].ops if op.kind == "collective" and op.layer is not None]
    counts = Counter((op.phase, op.layer, op.collective) for op in inside)
    assert counts == {(phase, i, "all_reduce"): 2 for phase in ("forward", "backward") for i in range(2)}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--tp", "4", "--world", "4"), "--tp: 2 key/value heads of tiny do not divide by 4"),
        (("--tp", "3", "--world", "3"), "--tp: 4 heads of tiny do not divide by 3"),
        (("--fsdp", "64", "--world", "64"), "--fsdp: 32 model width per rank of tiny do not divide by 64"),
        (("--fsdp", "4", "--world", "8"), "--world: 8 ranks, but llama.py lays out fsdp 4 x tp 1 = 4"),
        (("--fsdp", "0", "--world", "1"), "--fsdp: must be at least 1, is 0"),
        (("--model", "9b", "--world", "1"), "invalid choice: '9b'"),
        (("--dtype", "int8", "--world", "1"), "--dtype: no floating-point dtype 'int8'"),
        (("--nonsense", "--world", "1"), "unrecognized arguments: --nonsense"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        fake(tmp_path, *arguments[:-2], world=int(arguments[-1]))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
