"""What would help: which changes are worth a run of their own, and what they gained.

Nothing is guessed here: a change is tried by replaying the job with it (the caller's ``rerun``), so its figure is what
a real run with that change gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType

from emulator.report import figures
from emulator.report.changes import Change, Kind, describe
from emulator.report.critical import composition
from emulator.report.hints import crossing, exposed_part
from emulator.report.kinds import kind_of_group
from emulator.report.tables import Column, table
from emulator.result.schema import Result, WhatIf

WORTH_TRYING = 0.01  # of the step: what contributes less is not tried
LATE = 0.005  # of all ranks' time: exposed waiting for late ranks that makes `even` worth a run
MOST = 6


def changes(result: Result) -> list[Change]:
    """The changes worth trying, by what they act on: the longest parts of the critical path first.

    Communication of each group on the path made free; each link level that carries such a group twice as fast; even
    ranks, where others wait for late ones; compute a tenth faster, where the path computes; compute alone on the chip,
    where communication slows it; ranks placed by another order of axes, where tensor or expert parallel leaves the
    fastest links; a host that is never late.
    """
    if not result.step_seconds > 0:
        return []
    worth = WORTH_TRYING * result.step_seconds
    groups = [(name, s) for name, s in composition(result, _group_key) if name and s >= worth]
    ranked: list[tuple[float, Change]] = [(s, Change("free", name)) for name, s in groups]
    levels: dict[str, float] = {}
    for name, seconds in groups:
        for level in {use.level for use in result.links if name in use.groups}:
            levels[level] = levels.get(level, 0.0) + seconds / 2
    ranked += [(seconds, Change("faster", level, 2.0)) for level, seconds in levels.items() if seconds >= worth]
    late = sum(ranks.lateness.exposed_seconds for ranks in result.ranks if ranks.lateness)
    if late >= LATE * result.step_seconds * result.world_size:
        ranked.append((late / result.world_size, Change("even")))
    computing = dict(composition(result, lambda _result, _class, _row, what: what)).get("compute", 0.0) / 10
    if computing >= worth:
        ranked.append((computing, Change("compute", "", 1.1)))
    lines: dict[str, Kind] = {"slowed": "alone", "host": "host"}
    means = [(_mean(result, line), kind) for line, kind in lines.items()]
    ranked += [(lost, Change(kind)) for lost, kind in means if lost >= worth]
    for parallel, _ in crossing(result):
        order = inner_first(result.trace.mesh_axes)
        if order != result.trace.mesh_axes:
            ranked.append((exposed_part(result, parallel) * result.step_seconds, Change("place", ",".join(order))))
            break
    ranked.sort(key=lambda pair: (-pair[0], pair[1].kind, pair[1].target))
    return [change for _, change in ranked[:MOST]]


def try_changes(
    result: Result, rerun: Callable[[Change], float], *, progress: Callable[[int, int], None] | None = None
) -> list[WhatIf]:
    """Every change worth trying, with the step it gives, the best first.

    ``rerun`` replays the job with one change and returns the length of the step in seconds; ``progress(done, total)``
    is called after each.
    """
    tried = changes(result)
    found = []
    for i, change in enumerate(tried):
        found.append(WhatIf(change.kind, change.target, change.factor, rerun(change)))
        if progress is not None:
            progress(i + 1, len(tried))
    return sorted(found, key=lambda entry: (entry.step_seconds, entry.change, entry.target))


def what_if(result: Result, width: int) -> Iterator[RenderableType]:
    """The table of what was tried; nothing if nothing was."""
    if not result.what_if:
        return
    columns = [
        Column("with", [describe(entry) for entry in result.what_if], left=True),
        Column("step", [figures.seconds(entry.step_seconds) for entry in result.what_if]),
        Column("change", [figures.change(entry.step_seconds, result.step_seconds) for entry in result.what_if]),
    ]
    note = "Each from a replay of its own with that one change; change is % of the step. Changes do not add up."
    yield table("What would help", columns, width, note)


def inner_first(axes: Sequence[str]) -> list[str]:
    """Axes of a mesh, outermost first, with those that need the fastest links innermost: tensor, then expert, then
    context parallel; pipeline stages outermost.
    """
    rank = {"PP": 0, "CP": 2, "EP": 3, "SP": 4, "TP": 4}
    return sorted(axes, key=lambda axis: rank.get(kind_of_group(axis), 1))


def _mean(result: Result, line: str) -> float:
    """Seconds of a line of the partition, mean over all ranks."""
    total = sum(r.count * float(getattr(r.partition, f"{line}_seconds")) for r in result.ranks if r.partition)
    return total / result.world_size


def _group_key(result: Result, rank_class: int, row: int, what: str) -> str:
    return result.programs[result.ranks[rank_class].program].group[row] if what == "transfer" else ""
