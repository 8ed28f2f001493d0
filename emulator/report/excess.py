"""How much longer other pipeline stages have worked on their microbatches than a rank has to: what they can cost it.

Stages that work equally long make a rank wait only while the pipeline fills and drains, however they order their work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.report.history import History
from emulator.report.holding import Spans
from emulator.result.tables import Floats, Ints

Unit = tuple[str, int]  # direction and microbatch
_SLOWEST = 64  # rank classes that others are compared with: those that work longest


@dataclass(frozen=True)
class _Stays:
    """The pipeline work of one rank class, its collectives included: its stays with one unit, in order of time."""

    end: Floats
    seconds: Floats
    unit: list[Unit]


class Excess:
    """Compares the work of rank classes, unit by unit."""

    def __init__(self, history: History) -> None:
        stays = [_stays(rank.spans) for rank in history.ranks]
        known: dict[Unit, int] = {}
        codes = [np.array([known.setdefault(unit, len(known)) for unit in s.unit], dtype=np.int64) for s in stays]
        self._seconds = [np.bincount(c, s.seconds, len(known)) for c, s in zip(codes, stays, strict=True)]  # by unit
        totals = np.array([seconds.sum() for seconds in self._seconds])
        chosen = np.sort(np.argsort(-totals, kind="stable")[:_SLOWEST]).tolist()
        counts = np.array([len(codes[i]) for i in chosen], dtype=np.int64)
        self._first = np.repeat(np.cumsum(counts) - counts, counts)  # of the same class
        self._stay_seconds = np.concatenate([np.empty(0), *(stays[i].seconds for i in chosen)])
        self._unit = np.concatenate([np.empty(0, np.int64), *(codes[i] for i in chosen)])
        self._unit_seconds = np.concatenate([np.empty(0), *(self._seconds[i][codes[i]] for i in chosen)])
        end = np.concatenate([np.empty(0), *(stays[i].end for i in chosen)])
        self._order = np.argsort(end, kind="stable")
        self._end = end[self._order]
        self._rounding = history.rounding
        self._curves: dict[int, tuple[Floats, Floats]] = {}

    def until(self, rank_class: int, moment: float) -> float:
        """Seconds that the stage that was furthest behind until a moment had worked longer on what it had done by then
        than this rank class takes for the same units (the whole time, where it has no such unit).
        """
        if rank_class not in self._curves:
            self._curves[rank_class] = self._curve(rank_class)
        moments, seconds = self._curves[rank_class]
        return float(seconds[np.searchsorted(moments, moment + self._rounding, side="right")])

    def _curve(self, rank_class: int) -> tuple[Floats, Floats]:
        """Moments at which the excess grows, and how much it is before, between and after them."""
        part = np.divide(self._stay_seconds, self._unit_seconds, where=self._unit_seconds > 0,
                         out=np.zeros_like(self._stay_seconds))  # fmt: skip
        grown = np.concatenate([[0.0], np.cumsum(self._stay_seconds - part * self._seconds[rank_class][self._unit])])
        excess = grown[1:] - grown[self._first]
        highest = np.maximum.accumulate(np.concatenate([[0.0], excess[self._order]]))
        grows = np.flatnonzero(np.diff(highest) > 0)
        return self._end[grows], np.concatenate([[0.0], highest[grows + 1]])


def _stays(spans: Spans) -> _Stays:
    traits = spans.traits
    inside = np.isin(traits.unit_codes, traits.unit_codes[traits.pipelined]) & traits.collectives
    rows = np.flatnonzero((traits.pipelined | inside) & ~np.isnan(spans.end))
    begin = np.where(traits.collectives, spans.transfer_start, spans.start)[rows]
    order = np.argsort(begin, kind="stable")
    rows, begin = rows[order], begin[order]
    end = spans.end[rows]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(end)])[: len(rows)]
    worked = np.maximum(end - np.maximum(begin, before), 0.0)  # what runs at the same time counts once
    first = _changes(traits.unit_codes[rows])
    return _Stays(
        end=np.maximum.reduceat(end, first) if len(rows) else np.empty(0),
        seconds=np.add.reduceat(worked, first) if len(rows) else np.empty(0),
        unit=[traits.units[row] for row in rows[first].tolist()],
    )


def _changes(codes: Ints) -> Ints:
    """Where a column takes a new value, its first row included."""
    changed = np.ones(len(codes), dtype=np.bool_)
    changed[1:] = codes[1:] != codes[:-1]
    return np.flatnonzero(changed)
