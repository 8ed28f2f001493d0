"""Every strategy: recording changes nothing, the parallel run is right, the fake world says the same op by op, and what
is communicated is what the formula says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch")

import capture_ranks  # noqa: E402
from strategies import COMBINED, STRATEGIES, Multiset, Strategy  # noqa: E402

from emulator.capture import fake  # noqa: E402
from emulator.capture.merge import merge  # noqa: E402
from emulator.capture.processes import run_ranks  # noqa: E402
from emulator.capture.session import RankCapture  # noqa: E402
from emulator.capture.workload import Workload, find, load  # noqa: E402
from emulator.trace import check  # noqa: E402
from emulator.trace.mesh import program_of_rank  # noqa: E402
from emulator.trace.schema import Meta, Op, Ref, Trace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

SLOW = [pytest.param(strategy, marks=pytest.mark.slow, id=strategy.name) for strategy in COMBINED]
each = pytest.mark.parametrize("strategy", [*STRATEGIES, *SLOW], ids=lambda strategy: strategy.name)


def arguments(strategy: Strategy) -> list[str]:
    return [*strategy.arguments.split(), *(() if "--dtype" in strategy.arguments else ("--dtype", "float64"))]


@cache
def workload(strategy: Strategy) -> Workload:
    return load(find(strategy.workload), arguments(strategy))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """All strategies of a number of ranks run in one set of processes, when the first of them is asked for."""

    class Folders(dict[int, Path]):
        def __missing__(self, ranks: int) -> Path:
            jobs = [(s.name, find(s.workload), arguments(s)) for s in (*STRATEGIES, *COMBINED) if s.ranks == ranks]
            self[ranks] = tmp_path_factory.mktemp(f"ranks{ranks}")
            run_ranks(capture_ranks.survey, (jobs,), ranks, self[ranks], source="survey", time_limit=300)
            return self[ranks]

    return Folders()


@pytest.fixture
def real(folders: Mapping[int, Path], strategy: Strategy) -> Trace:
    files = [folders[strategy.ranks] / f"capture.{strategy.name}.{rank}" for rank in range(strategy.ranks)]
    captures = [msgspec.msgpack.decode(file.read_bytes(), type=RankCapture) for file in files]
    return merge(captures, workload(strategy).axes, Meta(notes=dict(captures[0].notes)))


def communicated(trace: Trace) -> Multiset:
    found: Multiset = Counter()
    for program in program_of_rank(trace).tolist():
        for op in trace.programs[program].ops:
            assert isinstance(op, Op)
            if op.kind in ("collective", "send", "recv"):
                found[op.collective or op.kind, op.group, max(op.bytes_in, op.bytes_out)] += 1
    return found


@each
def test_collectives_are_those_of_the_formula(real: Trace, strategy: Strategy) -> None:
    found, expected = communicated(real), strategy.formula()
    if not strategy.sized:
        found, expected = (without_sizes(counts, "all_to_all") for counts in (found, expected))
    assert found == expected


def without_sizes(counts: Multiset, kind: str) -> Multiset:
    left: Multiset = Counter()
    for (name, group, size), count in counts.items():
        left[name, group, 0 if name == kind else size] += count
    return left


@pytest.mark.parametrize("strategy", COMBINED, ids=lambda strategy: strategy.name)
def test_in_more_dimensions_too_as_a_fake_world_says(strategy: Strategy) -> None:
    loaded = workload(strategy)
    assert communicated(merge(fake.capture_roles(loaded), loaded.axes, Meta())) == strategy.formula()


@pytest.mark.parametrize("strategy", [*(s for s in STRATEGIES if s.fake), *SLOW], ids=lambda strategy: strategy.name)
def test_the_fake_world_says_the_same_op_by_op(real: Trace, strategy: Strategy) -> None:
    loaded = workload(strategy)
    again = merge(fake.capture_roles(loaded), loaded.axes, Meta())
    assert again.programs == real.programs
    assert (again.ranks, again.groups, again.mesh) == (real.ranks, real.groups, real.mesh)


@each
def test_the_trace_is_right_and_guarded(real: Trace, strategy: Strategy) -> None:
    assert not list(check.faults(real))
    unexpected = {"data_dependencies_without_a_wait", "waits_unmatched", "communication_ops_skipped"}
    assert not unexpected & real.meta.notes.keys()


@each
def test_memory_is_allocated_before_it_is_used_and_freed_once_after(real: Trace, strategy: Strategy) -> None:
    for program in real.programs:
        allocated: set[Ref | None] = set()
        freed: set[Ref | None] = set()
        used: set[Ref | None] = set()
        for op in program.ops:
            assert isinstance(op, Op)
            if op.kind == "alloc":
                assert op.storage not in allocated | freed | used
                allocated.add(op.storage)
            elif op.kind == "free":
                assert op.storage not in freed
                freed.add(op.storage)
            else:
                touched = {storage for storage, _ in (*op.reads, *op.writes)}
                assert not touched & freed
                used |= touched
        assert freed & used
        assert {"activation", "gradient"} <= {op.category for op in program.ops if isinstance(op, Op)}


@each
def test_recording_changes_nothing_and_the_parallel_run_is_right(
    folders: Mapping[int, Path], strategy: Strategy
) -> None:
    for rank in range(strategy.ranks):
        result = json.loads((folders[strategy.ranks] / f"result.{strategy.name}.{rank}").read_text())
        assert result["same_losses"]
        assert result["same_parameters"]  # bitwise
        assert result["parameters"] > 0
        if strategy.exact:
            assert result["loss_error"] < 1e-12  # fp64: only the order of sums differs
            assert result["parameter_error"] < 1e-11  # AdamW divides small gradients by their size
