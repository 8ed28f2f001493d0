"""The steady state of long repeats: found by equal state, then jumped over.

A replay is deterministic and does not know what time it is. If, for long enough, every event of every rank comes
exactly one period after its twin some instances of the repeated block before, then the state one period ago was the
state now, and it will be so as long as no rank leaves its repeats. So the replay runs with most instances taken out
(:mod:`emulator.trace.repeats`), this module checks that before the first rank left, everything was periodic, and the
instances taken out add their periods at that point. A period may span several instances: coupled stages can take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.replay.columns import RowTimes
from emulator.trace.repeats import Cut, Site

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_PERIODS = 2  # an op lasts less than a period: what began before the last one was seen to begin a period earlier
_SPANS = 12  # instances that a period may span
_SAME = 1e-9  # of the period


@dataclass(frozen=True)
class Jump:
    """At ``at`` (seconds of the shortened step) ``count`` periods of ``period`` seconds were left out, each of ``span``
    instances. ``left`` instances more were cut than make whole periods: they have to be put back."""

    at: float
    period: float
    count: int
    span: int
    left: int

    @property
    def seconds(self) -> float:
        """What was left out."""
        return self.period * self.count


def weights(jumps: Sequence[Jump], end: Floats) -> Floats:
    """How many executions each op with this end stands for: those of a last period stand for all left out."""
    weight = np.ones(len(end))
    for jump in jumps:
        inside = (end > jump.at - jump.period * (1 - _SAME)) & (end <= jump.at * (1 + 1e-12))
        weight += jump.count * inside
    return weight


def late_tags(cuts: Sequence[Cut], jumps: Sequence[Jump], program: int, end: Floats) -> dict[str, Ints]:
    """What the tags of the rows of a program have to grow by: instances after a jump have later numbers."""
    found: dict[str, Ints] = {}
    for cut, jump in zip(cuts, jumps, strict=True):
        site = cut.sites[program]
        rows = np.arange(site.first_row, site.first_row + site.rows * site.kept)
        late = rows[end[rows] > jump.at]
        for tag, step in site.steps.items():
            found.setdefault(tag, np.zeros(len(end), dtype=np.int64))[late] += step * jump.count * jump.span
    return found


def find_jumps(cuts: Sequence[Cut], nodes: Sequence[tuple[int, RowTimes]]) -> list[Jump] | None:
    """The jump of every cut, or None if one of them was not in steady state.

    ``nodes``: program and times of every node.
    """
    jumps: list[Jump] = []
    for cut in cuts:
        jump = _find(cut, nodes)
        if jump is None or (jumps and jump.at - _PERIODS * jump.period < jumps[-1].at):
            return None
        jumps.append(jump)
    return jumps


def _instances(site: Site, column: Floats) -> Floats:
    return column[site.first_row : site.first_row + site.rows * site.kept].reshape(site.kept, site.rows)


def _find(cut: Cut, nodes: Sequence[tuple[int, RowTimes]]) -> Jump | None:
    at = min(float(_instances(cut.sites[program], times.end)[-1].min()) for program, times in nodes)
    for span in range(1, _SPANS + 1):
        period = _period(cut, nodes, at, span)
        if period is not None and all(_steady(cut.sites[p], times, at, period, span) for p, times in nodes):
            return Jump(at, period, cut.count // span, span, cut.count % span)
    return None


def _period(cut: Cut, nodes: Sequence[tuple[int, RowTimes]], at: float, span: int) -> float | None:
    """The time over ``span`` instances of the first node's last op before ``at``."""
    program, times = nodes[0]
    ends = _instances(cut.sites[program], times.end)[:, -1]
    before = ends[ends <= at]
    if len(before) <= span:
        return None
    period = float(before[-1] - before[-1 - span])
    return period if period > 0 else None


def _steady(site: Site, times: RowTimes, at: float, period: float, span: int) -> bool:
    since = at - _PERIODS * period
    return all(
        _periodic(_instances(site, column), since, at, period, span)
        for column in (times.start, times.end, times.transfer_start)
    ) and _nothing_else(site, times, since, at)


def _periodic(events: Floats, since: float, until: float, period: float, span: int) -> bool:
    """In the window, every op comes one period after its twin ``span`` instances before (nan: no such event)."""
    events = events[:, ~np.isnan(events).all(axis=0)]
    steps = events[span:] - events[:-span]
    inside = (events[span:] > since) & (events[span:] <= until)
    enough = np.count_nonzero(inside, axis=0) >= _PERIODS * span - 1
    return bool(enough.all()) and bool((np.abs(steps[inside] - period) <= _SAME * period).all())


def _nothing_else(site: Site, times: RowTimes, since: float, until: float) -> bool:
    """No op outside the repeats runs in the window."""
    outside = np.ones(len(times.end), dtype=bool)
    outside[site.first_row : site.first_row + site.rows * site.kept] = False
    busy = outside & (times.end > since) & (times.start < until)
    return not bool(busy.any())
