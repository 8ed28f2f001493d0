"""The clock: SimPy's environment with absolute times and a faster main loop.

A :class:`Clock` is a :class:`simpy.Environment`: user processes, events and ``run(until=...)`` work as SimPy documents.
It adds what the network needs. An event can be set for an absolute time, since ``now + (t - now)`` is not ``t``
in floating point and equal finish times would fall apart. It can be taken back, without leaving a trace in ``now``.
And :meth:`Clock.run` without an end pops events in one loop instead of calling ``step`` for each.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import simpy
from simpy.events import NORMAL, Event

LAST = 3  # priority of what must come after everything else of the same instant (SimPy uses 0 and 1)


class Clock(simpy.Environment):  # type: ignore[misc]  # SimPy is seen as untyped (pyproject.toml)
    """Simulated time in seconds, like a wall clock that jumps from event to event.

    ``events`` counts the events processed so far.
    """

    def __init__(self, initial_time: float = 0.0) -> None:
        super().__init__(initial_time)
        self.events = 0

    def schedule_at(self, time: float, event: Event, priority: int = NORMAL) -> None:
        """Schedule a triggered ``event`` at exactly ``time`` (seconds). Raises ValueError if that lies in the past."""
        if not time >= self._now:
            raise ValueError(f"cannot schedule at {time}: it is {self._now}")
        heapq.heappush(self._queue, (time, priority, next(self._eid), event))

    def call_at(self, time: float, callback: Callable[[Event], None], priority: int = NORMAL) -> Event:
        """Have ``callback(event)`` called at exactly ``time`` (seconds); returns the event."""
        event = Event(self)
        event._ok = True
        event._value = None
        event.callbacks.append(callback)
        self.schedule_at(time, event, priority)
        return event

    def cancel(self, event: Event) -> None:
        """Take back an event that is set for later: it will not happen, and time will not stop at it."""
        event.callbacks = None

    def step(self) -> None:
        """Process the next event (SimPy's step, counted; what was taken back is passed over)."""
        queue = self._queue
        while queue and queue[0][3].callbacks is None:
            heapq.heappop(queue)
        super().step()
        self.events += 1

    def run(self, until: float | Event | None = None) -> Any:
        """Run until no event is left, or as SimPy's ``run(until)``."""
        if until is not None:
            return super().run(until)
        queue, pop = self._queue, heapq.heappop
        processed = 0
        try:
            while queue:
                time, _, _, event = pop(queue)
                callbacks = event.callbacks
                if callbacks is None:  # taken back
                    continue
                self._now = time
                processed += 1
                event.callbacks = None
                for callback in callbacks:
                    callback(event)
                if not event._ok and not hasattr(event, "_defused"):
                    raise event._value
        finally:
            self.events += processed
        return None
