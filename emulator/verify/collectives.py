"""Collective schedules proved: executed between processes from the steps that the simulator times.

Each schedule is checked in four ways: its steps keep the collective's promise (tallies, no data); integer tensors equal
the mathematical result and gloo's, bit for bit; floating point equals a single-process model that adds in the declared
order, bit for bit, and gloo within the error of a sum; and, on a topology, every message has a path that carries all of
it and the flows that are timed carry the bytes of the steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from emulator.capture.processes import run_ranks
from emulator.network import collectives
from emulator.network.collectives import Grid
from emulator.network.layout import Layout, layout
from emulator.verify import memory
from emulator.verify.plan import ROOTED, Plan, definition_faults, plan
from emulator.verify.report import Check, Progress, Report, Stopwatch, check, report
from emulator.verify.routes import flow_faults, route_faults

Ints = Any
TIME_LIMIT = 300.0


class Outcome(msgspec.Struct):
    """What the judge found about one plan in one dtype."""

    findings: list[str]
    compared: int
    largest_error: float  # against gloo, as a part of the error bound


def verify_collective(
    collective: str,
    *,
    algorithm: str = "",
    ranks: int = 4,
    topology: Any = None,
    sizes: Sequence[int] | None = None,
    roots: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    time_limit: float = TIME_LIMIT,
    progress: Progress = lambda _text: None,
) -> Report:
    """Prove one collective, or ``"all"`` of them, in every algorithm that applies (or the named one).

    ``topology`` (an ``emulator.topology`` object) gives the servers and the torus that algorithms use, and the paths;
    ranks sit on its first accelerators; None: one server. ``sizes``: elements per buffer. Raises InputError if it
    cannot be run.
    """
    watch = Stopwatch()
    where = Layout(np.zeros(ranks, dtype=np.int64)) if topology is None else layout(topology, np.arange(ranks))
    plans = list(
        plans_of(collective, algorithm, ranks, domains=where.domains, grid=where.grid, sizes=sizes, roots=roots)
    )
    checks = prove(plans, topology=topology, dtypes=dtypes, time_limit=time_limit, progress=progress)
    facts: dict[str, str | int | float] = {"ranks": ranks, "schedules": len(plans)}
    if topology is not None:
        facts["topology"] = topology.name
    return report(f"{collective}, {ranks} ranks", checks, facts, watch.total())


def plans_of(
    collective: str,
    algorithm: str = "",
    n: int = 4,
    *,
    domains: Ints | None = None,
    grid: Grid | None = None,
    sizes: Sequence[int] | None = None,
    roots: Sequence[int] | None = None,
) -> Iterator[Plan]:
    """All schedules to prove for a group of ``n``: algorithms x sizes x roots, and uneven parts where they may be."""
    for kind in collectives.COLLECTIVES if collective == "all" else [collective]:
        if kind == "send" and n > 2 and collective == "all":
            continue
        for name in [algorithm] if algorithm else _algorithms(kind, n, domains, grid):
            place: dict[str, Any] = {"domains": domains, "grid": grid}
            for root in (roots or range(n)) if kind in ROOTED else (0,):
                for elements in sizes or (7 * n + 3, n - 1):
                    yield plan(kind, name, n, elements, root=root, **place)
            splits = _uneven(kind, n)
            if splits is not None and name in _algorithms(kind, n, domains, grid, splits):
                yield plan(kind, name, n, 0, root=n // 2 if kind in ROOTED else 0, splits=splits, **place)


def _algorithms(
    collective: str, n: int, domains: Ints | None, grid: Grid | None, splits: Ints | None = None
) -> list[str]:
    every = {"switches": ("nvls", "sharp"), "every": True}
    return collectives.algorithms(collective, n, domains, grid, splits=splits, **every)  # type: ignore[arg-type]


def _uneven(collective: str, n: int) -> Ints | None:
    """Elements of uneven parts, some of them empty; None where a collective has no parts."""
    rng = np.random.default_rng(n)
    if collective == "all_to_all":
        return rng.integers(0, 9, (n, n)) * rng.integers(0, 2, (n, n))
    if collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
        return rng.integers(0, 9, n)
    return None


def prove(
    plans: Sequence[Plan],
    *,
    topology: Any = None,
    dtypes: Sequence[str] | None = None,
    time_limit: float = TIME_LIMIT,
    progress: Progress = lambda _text: None,
) -> list[Check]:
    """The checks of all plans, put together by collective and algorithm."""
    kinds = list({(p.collective, p.algorithm): None for p in plans})
    checks = []

    def add(made: Check) -> None:
        checks.append(made)
        progress(made.line())

    for collective, algorithm in kinds:
        watch, mine = Stopwatch(), _of(plans, collective, algorithm)
        found = [f"{p.name}: {fault}" for p in mine for fault in definition_faults(p)]
        add(check("definition", f"{collective} {algorithm}", found, len(mine), tolerance="exact", seconds=watch.lap()))
        flows = [f"{p.name}: {fault}" for p in mine for fault in flow_faults(p)]
        add(check("flows", f"{collective} {algorithm}", flows, len(mine), tolerance="1e-12", seconds=watch.lap()))
        if topology is not None:
            pairs, lost = route_faults(topology, mine)
            if pairs:  # none where all goes through a reducing switch
                add(
                    check(
                        "paths",
                        f"{collective} {algorithm} on {topology.name}",
                        lost,
                        pairs,
                        tolerance="1e-9",
                        seconds=watch.lap(),
                    )
                )
    watch = Stopwatch()
    outcomes = execute(plans, dtypes=dtypes, time_limit=time_limit)
    for collective, algorithm in kinds:
        for made in _judged(plans, outcomes, collective, algorithm, watch.lap()):
            add(made)
    return checks


def _of(plans: Sequence[Plan], collective: str, algorithm: str) -> list[Plan]:
    return [p for p in plans if (p.collective, p.algorithm) == (collective, algorithm)]


def _judged(
    plans: Sequence[Plan], outcomes: Sequence[dict[str, Outcome]], collective: str, algorithm: str, seconds: float
) -> Iterator[Check]:
    mine = [o for p, o in zip(plans, outcomes, strict=True) if (p.collective, p.algorithm) == (collective, algorithm)]
    for exact in (True, False):
        done = [o for by_dtype in mine for dtype, o in by_dtype.items() if (dtype == "int64") == exact]
        if not done:
            continue
        compared = sum(o.compared for o in done)
        findings = [finding for o in done for finding in o.findings]
        subject = f"{collective} {algorithm}"
        if exact:
            yield check("integers", subject, findings, compared, seconds=seconds)
        else:
            largest = max(o.largest_error for o in done)
            tolerance = "bitwise; gloo: (n-1) eps sum|x|"
            yield check("floats", subject, findings, compared, largest_error=largest, tolerance=tolerance)


# ---- the processes


def execute(
    plans: Sequence[Plan], *, dtypes: Sequence[str] | None = None, time_limit: float = TIME_LIMIT
) -> list[dict[str, Outcome]]:
    """Carry the plans out in one pool of processes, one per player and one that judges: outcomes by plan and dtype.

    Raises InputError if a process fails or the time limit passes.
    """
    from emulator.verify.schedule import DTYPES  # noqa: PLC0415 - torch only when tensors move

    players = max(p.players for p in plans)
    largest = max(p.elements for p in plans)
    memory.check_room(players + 1, extra_bytes=largest * 8 * 4, source=plans[0].collective)
    with tempfile.TemporaryDirectory(prefix="emu-verify-") as name:
        folder = Path(name)
        run_ranks(
            _process, (tuple(plans), tuple(dtypes or DTYPES)), players + 1, folder,
            source=plans[0].collective if len({p.collective for p in plans}) == 1 else "collectives",
            time_limit=time_limit,
        )  # fmt: skip
        return msgspec.msgpack.decode((folder / "outcomes").read_bytes(), type=list[dict[str, Outcome]])


def _process(rank: int, nproc: int, folder: Path, plans: tuple[Plan, ...], dtypes: tuple[str, ...]) -> None:
    import torch.distributed as dist  # noqa: PLC0415
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    from emulator.verify import judge, schedule  # noqa: PLC0415
    from emulator.verify.meeting import meet  # noqa: PLC0415

    meet(rank, nproc, folder)
    groups = {n: dist.new_group(list(range(n))) for n in sorted({p.members for p in plans})}
    if rank < nproc - 1:
        kept = {}
        for number, what in enumerate(plans):
            if rank >= what.players:
                continue
            for dtype in judge.dtypes_of(what, dtypes):
                ours = schedule.carry_out(what, dtype, rank)
                kept[f"{number}.{dtype}.ours"] = ours.buffer
                theirs = schedule.by_gloo(what, dtype, rank, groups[what.members])
                if theirs is not None:
                    kept[f"{number}.{dtype}.gloo"] = theirs.buffer
        save_file(kept, folder / f"buffers.{rank}")
        dist.barrier()
    else:
        models = [{d: schedule.model(p, d) for d in judge.dtypes_of(p, dtypes)} for p in plans]
        dist.barrier()
        buffers = [load_file(folder / f"buffers.{r}") for r in range(nproc - 1)]
        outcomes = [
            {d: judge.judge(p, d, number, buffers, model) for d, model in models[number].items()}
            for number, p in enumerate(plans)
        ]
        (folder / "outcomes").write_bytes(msgspec.msgpack.encode(outcomes))
    dist.destroy_process_group()
