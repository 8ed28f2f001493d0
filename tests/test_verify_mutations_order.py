"""It must be able to fail, continued: recorded steps executed in orders, from states or by ops that are wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from emulator.api import run  # noqa: E402
from emulator.capture.command import record_command  # noqa: E402
from emulator.verify.random_order import issue_order  # noqa: E402
from emulator.verify.recorded import read_recorded  # noqa: E402
from emulator.verify.simulated import schedule_of  # noqa: E402
from emulator.verify.trace import execute, job_order, prove_orders  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

OWN = str(Path(__file__).with_name("verify_workload.py"))
LLAMA = ("--model", "tiny", "--layers", "1", "--fsdp", "2")


def catches(_name):
    """Names what a test breaks, as the table in docs/verify.md does."""
    return lambda test: test


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two FSDP ranks, one layer."""
    path = tmp_path_factory.mktemp("fsdp") / "t.json"
    record_command(path, "workloads/llama.py", [*LLAMA], nproc=2, with_state=True)
    return read_recorded(str(path))


@pytest.fixture(scope="module")
def schedule(recorded):
    return simulated(recorded)


def simulated(recorded):
    """On a network slow enough that communication is long against compute."""
    return schedule_of(recorded, run(recorded.trace, "torus", device="tpu-v4", lowering="eager"))


def row_of(schedule, rank, op_id):
    unrolled = schedule.rows[schedule.recorded.program[rank]]
    return next(r for r, t in enumerate(unrolled.template.tolist()) if schedule.ops[t].id == op_id)


def moved(schedule, rank, op_id, *, start=None, end=None):
    """The schedule with other times of one op of one rank."""
    row = row_of(schedule, rank, op_id)
    starts, ends = [t.copy() for t in schedule.start], [t.copy() for t in schedule.end]
    starts[rank][row] = starts[rank][row] if start is None else start
    ends[rank][row] = ends[rank][row] if end is None else end
    return dataclasses.replace(schedule, start=starts, end=ends, name="broken")


def times(schedule, rank, op_id):
    row = row_of(schedule, rank, op_id)
    return float(schedule.start[rank][row]), float(schedule.end[rank][row])


def find(recorded, rank=0, **fields):
    return next(
        op for op in recorded.ops(rank).values() if all(getattr(op, name) == value for name, value in fields.items())
    )


def reader_of(recorded, op, rank=0):
    """The first op that reads what ``op`` wrote."""
    written = {storage for storage, _ in op.writes}
    return next(
        o for o in recorded.ops(rank).values() if o.id > op.id and written & {storage for storage, _ in o.reads}
    )


def with_ops(recorded, change):
    """The recorded trace with some ops changed: ``change(op)`` gives a dict of fields or nothing."""
    programs = [
        msgspec.structs.replace(p, ops=[msgspec.structs.replace(op, **(change(op) or {})) for op in p.ops])
        for p in recorded.trace.programs
    ]
    return dataclasses.replace(recorded, trace=msgspec.structs.replace(recorded.trace, programs=programs))


def disproved(recorded, schedules=(), seeds=()):
    """Findings of each kind of check."""
    checks = prove_orders(recorded, schedules, seeds=seeds)
    return {check.name: check.findings for check in reversed(checks) if not check.proved}


def test_unbroken(recorded, schedule):
    assert disproved(recorded, [schedule], seeds=[1]) == {}


@catches("a wait removed, so that an all-gather's output is read early")
def test_wait_removed(recorded, schedule):
    """Nobody waits for an all-gather: its output is read before it is there."""
    gather = find(recorded, collective="all_gather")
    reader = reader_of(recorded, gather)

    def change(op):
        return {"deps": [d for d in op.deps if d < gather.id]} if gather.id < op.id <= reader.id else None

    broken = with_ops(recorded, change)
    found = disproved(broken, [simulated(broken)])
    assert re.search(rf"rank 0: op {reader.id} \S+.* reads storage \d+ that op {gather.id} ", found["accesses"][0])
    assert re.search(
        r"\d+ of \d+ tensors differ from the live run; the first op to differ is op", found["execution"][0]
    )


@catches("a dependency removed that no other path implies")
def test_dependency_removed(recorded):
    """A reduce-scatter no longer waits for the gradients it sums up, which no other path implies."""
    reduced = find(recorded, collective="reduce_scatter")

    def change(op):
        return {"deps": []} if op.stream == reduced.stream and op.id <= reduced.id else None

    broken = with_ops(recorded, change)
    found = disproved(broken, [simulated(broken)])
    assert re.search(rf"op {reduced.id} c10d._reduce_scatter_base_.*reads storage", "\n".join(found["accesses"]))
    assert found["execution"]


@catches("an engine that starts a collective before its last member arrived")
def test_collective_before_its_last_member(recorded, schedule):
    gather = find(recorded, collective="all_gather")
    _, end = times(schedule, 0, gather.id)
    broken = moved(schedule, 1, gather.id, start=end + 1e-6, end=end + 2e-6)
    met, found = broken.meeting_check()
    assert met > 2
    assert re.search(r"all_gather 0 of group fsdp ends on rank 0 at \S+ s, before rank 1 comes at", found[0])
    assert "meetings" in disproved(recorded, [broken])


@catches("an output read too early behind a right order of ends")
def test_read_too_early_behind_a_right_order_of_ends(recorded, schedule):
    """The reader begins before the all-gather has ended and ends after it: sorted by ends all looks well."""
    gather = find(recorded, collective="all_gather")
    reader = reader_of(recorded, gather)
    start, end = times(schedule, 0, gather.id)
    broken = moved(schedule, 0, reader.id, start=(start + end) / 2)
    assert times(broken, 0, reader.id)[1] > end
    found = disproved(recorded, [broken])
    assert "they overlap" in found["accesses"][0]
    assert f"the first op to differ is op {reader.id} " in found["execution"][0]


@catches("two ops in each other's place")
def test_two_ops_swapped(recorded, schedule):
    """The second of two matmuls, which needs the first, runs in its place."""
    first = find(recorded, name="aten.mm", phase="backward")
    second = reader_of(recorded, first)
    a, b = times(schedule, 0, first.id), times(schedule, 0, second.id)
    broken = moved(moved(schedule, 0, first.id, start=b[0], end=b[1]), 0, second.id, start=a[0], end=a[1])
    found = disproved(recorded, [broken])
    assert re.search(rf"op {second.id} .* it runs", "\n".join(found["accesses"]))
    assert found["execution"]


def executed(recorded, broken):
    return execute(recorded, {"issue order": issue_order(recorded), "broken": broken})


@catches("a fused kernel that leaves out one of its ops")
def test_fused_kernel_that_forgets_an_op(recorded, schedule):
    order = job_order(schedule)
    victim = find(recorded, name="aten.mm", phase="forward")
    units = [[u._replace(ops=tuple(o for o in u.ops if o != victim.id)) for u in own] for own in order.units]
    outcomes = execute(
        recorded, {"issue order": issue_order(recorded), "broken": dataclasses.replace(order, units=units)}
    )
    assert outcomes["issue order"][0].wrong == 0
    assert outcomes["broken"][0].wrong > 0
    assert outcomes["broken"][0].differing[0] == victim.id


@catches("an optimizer that steps twice")
def test_optimizer_twice(recorded, schedule):
    order = job_order(schedule)
    step = find(recorded, name="aten._fused_adamw_")
    units = [[u._replace(ops=(*u.ops, *[o for o in u.ops if o == step.id])) for u in own] for own in order.units]
    outcomes = execute(
        recorded, {"issue order": issue_order(recorded), "broken": dataclasses.replace(order, units=units)}
    )
    assert outcomes["broken"][1].differing == [step.id]
    assert outcomes["broken"][1].wrong > 0


@catches("one bit of the state before the step")
def test_contents_changed(recorded, tmp_path):
    """One bit of one parameter is not what it was."""
    contents = load_file(recorded.contents)
    key = max(contents, key=lambda name: contents[name].numel())
    contents[key][5] ^= 1
    save_file(contents, tmp_path / "other.safetensors")
    found = disproved(dataclasses.replace(recorded, contents=tmp_path / "other.safetensors"))
    assert re.search(r"rank \d: \d+ of \d+ tensors differ from the live run", found["execution"][0])


@catches("a reduce op that is not the recorded one")
def test_gradient_that_is_not_the_live_one(recorded, schedule):
    """A sum instead of an average in the recorded reduce-scatter: the optimizer is given something else."""

    def change(op):
        return {"reduce_op": "max"} if op.collective == "reduce_scatter" else None

    found = disproved(with_ops(recorded, change))
    assert any("is given a tensor that the live run did not have" in line for line in found["execution"])


@catches("communication whose writes are not declared")
def test_undeclared_writes(recorded):
    """Without the knowledge that communication writes its buffers, data dependencies are incomplete."""

    def change(op):
        return {"writes": []} if op.kind == "collective" else None

    found = disproved(with_ops(recorded, change), seeds=[1, 2])
    assert found["execution"]


@catches("two microbatches swapped on the wire")
def test_microbatches_swapped_on_the_wire(tmp_path):
    """Two sends of the pipeline leave with each other's activations."""
    path = tmp_path / "p.json"
    record_command(path, OWN, ["--kind", "pipeline"], nproc=2, with_state=True)
    recorded = read_recorded(str(path))
    assert disproved(recorded, [simulated(recorded)], seeds=[1]) == {}
    first, second = [op.id for op in recorded.ops(0).values() if op.kind == "send"][:2]
    calls = {call["op"]: call for call in recorded.trace.exec["sections"][0]["calls"]}
    calls[first]["args"], calls[second]["args"] = calls[second]["args"], calls[first]["args"]
    found = disproved(recorded)
    assert re.search(r"rank \d: \d+ of \d+ tensors differ", found["execution"][0])
