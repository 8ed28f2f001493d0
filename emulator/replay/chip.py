"""The chip of one node: kernels compute slower while communication is resident beside them.

A communication kernel holds part of the chip (its cores, its memory bandwidth) from the moment it is posted to its
end, also while it only waits for its peers. A kernel that takes the share k leaves a rate of 1 - k to everything that
computes; of several, each takes its share of what the others left.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from simpy.events import Event

from emulator.network.clock import Clock
from emulator.result.tables import ComputeRate


class _Running:
    """A run of compute ops under way: seconds of work left at time ``since``, and the event that ends it."""

    __slots__ = ("done", "event", "left", "since")

    def __init__(self, left: float, since: float, done: Callable[[Event], None]) -> None:
        self.left = left
        self.since = since
        self.done = done
        self.event: Event | None = None


class Chip:
    """Rate of computing on one node over time: ``times[i]`` (s) begins ``rates[i]``, the first at 0 with rate 1."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.times = [0.0]
        self.rates = [1.0]
        self._resident: dict[int, float] = {}
        self._running: dict[_Running, None] = {}

    def rate(self, node: int) -> ComputeRate:
        """What was kept, as that of a node."""
        return ComputeRate(node, np.array(self.times), np.array(self.rates))

    def compute(self, seconds: float, done: Callable[[Event], None]) -> None:
        """Start what takes ``seconds`` on a chip of its own; ``done`` is called at its end."""
        work = _Running(seconds, self.clock._now, done)
        self._running[work] = None
        self._set_end(work)

    def enter(self, item: int, share: float) -> None:
        """A communication item is posted and takes a share of the chip."""
        if share > 0:
            self._resident[item] = share
            self._change()

    def leave(self, item: int) -> None:
        """A communication item has ended."""
        if self._resident.pop(item, None) is not None:
            self._change()

    def _change(self) -> None:
        now, before = self.clock._now, self.rates[-1]
        rate = prod((1 - share for share in self._resident.values()), start=1.0)
        if rate == before:
            return
        if self.times[-1] == now:
            self.rates[-1] = rate
        else:
            self.times.append(now)
            self.rates.append(rate)
        for work in self._running:
            work.left = max(0.0, work.left - (now - work.since) * before)
            work.since = now
            if work.event is not None:
                self.clock.cancel(work.event)
            self._set_end(work)

    def _set_end(self, work: _Running) -> None:
        def end(event: Event) -> None:
            del self._running[work]
            work.done(event)

        work.event = self.clock.call_at(work.since + work.left / self.rates[-1], end)
