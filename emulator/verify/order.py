"""Orders in which a rank may carry out its ops: when each reads its inputs, and when it publishes its outputs.

A *unit* is what runs as one: a recorded op, or the recorded ops that a fused kernel stands for. An order is a list of
events, two per unit. Simulated times become an order by sorting; where times are equal, what ends comes first, then
what takes no time (in issue order), then what starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Unit(NamedTuple):
    """Ops (ids in issue order) that start and end together, seconds from the start of the step."""

    ops: tuple[int, ...]
    start: float
    end: float


class Event(NamedTuple):
    """A unit starts (reads) or ends (publishes)."""

    unit: int
    ends: bool


def by_time(units: Sequence[Unit]) -> list[Event]:
    """The order that the times of ``units`` (listed in issue order) say."""
    keyed = []
    for u, unit in enumerate(units):
        if unit.end > unit.start:
            keyed += [(unit.start, 2, u, Event(u, False)), (unit.end, 0, u, Event(u, True))]
        else:
            keyed += [(unit.start, 1, u, Event(u, False)), (unit.start, 1, u, Event(u, True))]
    keyed.sort(key=lambda line: line[:3])  # stable: of a unit without duration the start stays before the end
    return [event for *_, event in keyed]


def without_rounding(start: Floats, end: Floats, streams: Sequence[NDArray[np.int64]]) -> tuple[Floats, Floats]:
    """Times in which neighbours on a stream do not overlap by mere rounding.

    Inside a run of compute ops times follow by addition, so an op may seem to start one unit in the last place before
    the one ahead of it has ended. ``streams``: rows of each stream, in issue order.
    """
    start, end = start.copy(), end.copy()
    last_place = 1e-12 * float(end.max(initial=0.0))
    for rows in streams:
        for a, b in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
            if 0 < end[a] - start[b] <= last_place:
                start[b] = end[a]
                end[b] = max(end[b], start[b])
    return start, end


def positions(events: Sequence[Event], units: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each unit starts and ends in an order: i64[units] each, -1 for what does not occur."""
    starts, ends = np.full(units, -1, dtype=np.int64), np.full(units, -1, dtype=np.int64)
    for place, event in enumerate(events):
        (ends if event.ends else starts)[event.unit] = place
    return starts, ends
