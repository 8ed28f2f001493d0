"""What would help: which changes are worth a run of their own, and what they gained.

Nothing is guessed here: a change is tried by replaying the job with it (the caller's ``rerun``), so its figure is what
a real run with that change gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rich.console import RenderableType

from emulator.report import figures
from emulator.report.critical import composition
from emulator.report.kinds import kind_of_group
from emulator.report.tables import Column, table
from emulator.result.schema import Result, WhatIf

Kind = Literal["free", "faster", "even", "compute", "alone"]
WORTH_TRYING = 0.01  # of the step: what contributes less is not tried
LATE = 0.005  # of all ranks' time: exposed waiting for late ranks that makes `even` worth a run
MOST = 6


@dataclass(frozen=True)
class Change:
    """One change to a job or its cluster; ``factor`` only for ``faster`` and ``compute``. See ``WhatIf``."""

    kind: Kind
    target: str = ""
    factor: float = 1.0


def changes(result: Result) -> list[Change]:
    """The changes worth trying, by what they act on: the longest parts of the critical path first.

    Communication of each group on the path made free; each link level that carries such a group twice as fast; even
    ranks, where others wait for late ones; compute a tenth faster, where the path computes;
    compute alone on the chip, where communication slows it.
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
    slowed = sum(r.count * r.partition.slowed_seconds for r in result.ranks if r.partition) / result.world_size
    if slowed >= worth:
        ranked.append((slowed, Change("alone")))
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


def describe(entry: WhatIf) -> str:
    """A change in words, such as ``tp communication free``."""
    if entry.change == "free":
        kind = kind_of_group(entry.target)
        name = kind if kind.lower() == entry.target.lower() else f"{kind} ({entry.target})"
        return f"{name} communication free"
    if entry.change == "faster":
        return f"{entry.target} links {entry.factor:g} times as fast"
    if entry.change == "alone":
        return "compute not slowed by communication"
    if entry.change == "compute":
        return f"compute {entry.factor:g} times as fast"
    return "no straggler: every op takes all ranks as long as the median rank"


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


def _group_key(result: Result, rank_class: int, row: int, what: str) -> str:
    return result.programs[result.ranks[rank_class].program].group[row] if what == "transfer" else ""
