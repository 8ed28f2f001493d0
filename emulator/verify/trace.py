"""A recorded step proved: executed by the simulator's own start and end events, and in random orders.

Bitwise equality with the live run of all that outlives the step shows that the order is a legal execution. Where it is
not, the first op in issue order whose outputs differ from those in issue order tells where it went wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from emulator.api import run as simulate
from emulator.capture.fingerprint import CLOSE
from emulator.capture.processes import run_ranks
from emulator.replay.simulate import Options
from emulator.result.schema import Result
from emulator.verify import memory
from emulator.verify.order import by_time
from emulator.verify.random_order import DEPENDENCIES, JobOrder, issue_order, random_order
from emulator.verify.recorded import Recorded, describe, read_recorded
from emulator.verify.report import Check, Progress, Report, Stopwatch, check, report
from emulator.verify.simulated import Schedule, schedule_of

TIME_LIMIT = 300.0
ISSUE_ORDER = "issue order"


class RankOutcome(msgspec.Struct):
    """One order on one rank against the live run: what is left, what the optimizer was given, and against issue order:
    the ops whose outputs differ, in issue order. ``apart``: where the live run was on a machine whose kernels give
    other bits, the largest distance from it by dtype. Then only issue order is compared with it, within what such
    machines differ by, and the other orders with issue order on this machine."""

    compared: int
    apart: dict[str, float]
    wrong: int
    misread: list[str]
    failed: list[str]
    differing: list[int]


def verify_trace(
    name: str,
    *,
    topologies: Sequence[str] = ("fattree",),
    device: str | None = None,
    algorithms: str = "",
    lowering: str | None = None,
    overrides: Mapping[str, str] | None = None,
    seeds: Sequence[int] = (1, 2),
    time_limit: float = TIME_LIMIT,
    progress: Progress = lambda _text: None,
) -> Report:
    """Simulate a trace that was recorded with state on each topology and execute it as simulated, and in random orders.

    Raises InputError if it cannot be run.
    """
    watch = Stopwatch()
    recorded = read_recorded(name)
    results = [
        simulate(
            recorded.trace, topology, device=device, lowering=lowering, overrides=overrides,
            options=Options(algorithms=algorithms),
        )
        for topology in topologies
    ]  # fmt: skip
    facts: dict[str, str | int | float] = {"ranks": recorded.world, "topologies": ", ".join(topologies)}
    checks = prove_orders(
        recorded, [schedule_of(recorded, result) for result in results],
        seeds=seeds, time_limit=time_limit, progress=progress,
    )  # fmt: skip
    return report(recorded.name, checks, facts, watch.total())


def verify_result(
    recorded: Recorded, result: Result, *, time_limit: float = TIME_LIMIT, progress: Progress = lambda _text: None
) -> Report:
    """Execute what a replay of this trace just computed (``emu run --verify``). Raises InputError if the result is not
    of it."""
    watch = Stopwatch()
    checks = prove_orders(recorded, [schedule_of(recorded, result)], seeds=(), time_limit=time_limit, progress=progress)
    facts: dict[str, str | int | float] = {"ranks": recorded.world, "topology": result.topology.name}
    return report(recorded.name, checks, facts, watch.total())


def prove_orders(
    recorded: Recorded,
    schedules: Sequence[Schedule],
    *,
    seeds: Sequence[int] = (),
    time_limit: float = TIME_LIMIT,
    progress: Progress = lambda _text: None,
) -> list[Check]:
    """The checks of simulated schedules and of random orders of one recorded step."""
    checks: list[Check] = []

    def add(made: Check) -> None:
        checks.append(made)
        progress(made.line())

    watch = Stopwatch()
    legal: list[Schedule] = []
    for schedule in schedules:
        met, early = schedule.meeting_check()
        add(check("meetings", f"on {schedule.name}", early, met, tolerance="exact", seconds=watch.lap()))
        pairs, wrong = schedule.conflict_check()
        add(check("accesses", f"on {schedule.name}", wrong, pairs, tolerance="exact", seconds=watch.lap()))
        if not early:  # otherwise ranks would wait for each other in other orders than those simulated
            legal.append(schedule)
    orders = {ISSUE_ORDER: issue_order(recorded)}
    for schedule in legal:
        orders[f"as simulated on {schedule.name}"] = job_order(schedule)
    for dependencies in DEPENDENCIES if seeds else ():
        for seed in seeds:
            orders[f"random order {seed}, {dependencies}"] = random_order(recorded, seed, dependencies=dependencies)
    outcomes = execute(recorded, orders, time_limit=time_limit)
    for name, by_rank in outcomes.items():
        compared = sum(outcome.compared for outcome in by_rank)
        apart = [pair for outcome in by_rank for pair in outcome.apart.items()]
        how: dict[str, Any] = {}
        if apart:
            limits = ", ".join(f"{CLOSE[dtype]:.0e} ({dtype})" for dtype in sorted({d for d, _ in apart}))
            how = {"tolerance": f"{limits}, other kernels", "largest_error": max(d for _, d in apart)}
        found = list(_sentences(recorded, by_rank))
        add(check("execution", name, found, compared, seconds=watch.lap(), **how))
    return checks


def job_order(schedule: Schedule) -> JobOrder:
    """The simulated order of all ranks."""
    units = [schedule.units(rank) for rank in range(schedule.recorded.world)]
    return JobOrder(units, [by_time(mine) for mine in units])


def _sentences(recorded: Recorded, by_rank: Sequence[RankOutcome]) -> list[str]:
    found = []
    for rank, outcome in enumerate(by_rank):
        ops = recorded.ops(rank)
        if outcome.failed:
            found.append(f"rank {rank}: {outcome.failed[0]}")
        if outcome.wrong or outcome.misread:
            what = f"{outcome.wrong} of {outcome.compared} tensors differ from the live run"
            first = f"; the first op to differ is {describe(ops[outcome.differing[0]])}" if outcome.differing else ""
            found.append(f"rank {rank}: {what}{first}")
            found += [f"rank {rank}: {line}" for line in outcome.misread[:1]]
        elif outcome.differing:
            first = describe(ops[outcome.differing[0]])
            found.append(f"rank {rank}: what is left is right, but {first} gave other bytes than in issue order")
    return found


# ---- the processes


def execute(
    recorded: Recorded, orders: Mapping[str, JobOrder], *, time_limit: float = TIME_LIMIT
) -> dict[str, list[RankOutcome]]:
    """Carry out orders one after the other, one process per rank; the first is what the others are compared with.

    Outcomes by order and rank. Raises InputError if a process fails or the time limit passes.
    """
    memory.check_room(recorded.world, extra_bytes=4 * _largest_state(recorded), source=recorded.name)
    with tempfile.TemporaryDirectory(prefix="emu-verify-") as name:
        folder = Path(name)
        run_ranks(
            _process, (recorded, dict(orders)), recorded.world, folder, source=recorded.name, time_limit=time_limit
        )
        by_rank = [
            msgspec.msgpack.decode((folder / f"outcomes.{rank}").read_bytes(), type=dict[str, RankOutcome])
            for rank in range(recorded.world)
        ]
    return {name: [outcomes[name] for outcomes in by_rank] for name in orders}


def _largest_state(recorded: Recorded) -> float:
    return recorded.contents.stat().st_size / recorded.world


def _process(rank: int, nproc: int, folder: Path, recorded: Recorded, orders: Mapping[str, JobOrder]) -> None:
    import torch.distributed as dist  # noqa: PLC0415
    from safetensors import safe_open  # noqa: PLC0415

    from emulator.capture.numerics import numerics  # noqa: PLC0415
    from emulator.verify.execute import Executed, Executor  # noqa: PLC0415
    from emulator.verify.meeting import meet  # noqa: PLC0415
    from emulator.verify.messages import Messenger  # noqa: PLC0415
    from emulator.verify.recorded import section_of  # noqa: PLC0415

    meet(rank, nproc, folder)
    section = section_of(recorded, rank)
    with safe_open(recorded.contents, framework="pt") as file:
        mine = [key for key in file.keys() if key.startswith(f"{rank}.")]  # noqa: SIM118 - no mapping
        contents = {int(key.partition(".")[2]): file.get_tensor(key) for key in mine}
    executor = Executor(recorded.ops(rank), section, contents, Messenger(recorded.trace, rank))
    outcomes: dict[str, RankOutcome] = {}
    alike = section.numerics == numerics()
    after, given = section.after, {(c.op, i): live for c in section.calls for i, live in c.read.items()}
    first: Executed | None = None
    for name, order in orders.items():
        done = executor.run(order.units[rank], order.events[rank])
        same = alike or first is not None
        pairs = [(known, done.after[n]) for n, known in after.items()]
        pairs += [(known, done.given[at]) for at, known in given.items() if at in done.given]
        apart: dict[str, float] = {}
        for known, made in pairs if not same else ():
            if known.dtype in CLOSE:
                apart[known.dtype] = max(apart.get(known.dtype, 0.0), known.distance(made))
        outcomes[name] = RankOutcome(
            compared=len(after) + len(given),
            apart=apart,
            wrong=sum(not known.recognises(done.after[n], same_numerics=same) for n, known in after.items()),
            misread=[
                f"{describe(recorded.ops(rank)[op])} is given a tensor that the live run did not have"
                for (op, index), known in given.items()
                if (op, index) in done.given and not known.recognises(done.given[op, index], same_numerics=same)
            ],
            failed=done.failed,
            differing=[op for op in recorded.ops(rank) if done.written.get(op) != (first or done).written.get(op)],
        )
        if first is None:
            first = done
            if not alike:  # from here on, what this machine made of it
                after, given = done.after, done.given
    (folder / f"outcomes.{rank}").write_bytes(msgspec.msgpack.encode(outcomes))
    dist.barrier()  # nobody leaves while others still talk to it
    dist.destroy_process_group()
