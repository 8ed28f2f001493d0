"""The window of time that is on the screen."""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST = 1e-9  # seconds


@dataclass(frozen=True)
class Window:
    """From ``start`` to ``end`` (seconds) of a step of ``step`` seconds. Moves give a new window inside the step."""

    start: float
    end: float
    step: float

    @staticmethod
    def whole(step: float) -> Window:
        """The whole step."""
        return Window(0.0, step, step)

    @property
    def length(self) -> float:
        """Seconds shown."""
        return self.end - self.start

    @property
    def middle(self) -> float:
        """Its middle, seconds."""
        return (self.start + self.end) / 2

    def shows(self, moment: float) -> bool:
        """Whether a moment is in it."""
        return self.start <= moment <= self.end

    def at(self, start: float, length: float) -> Window:
        """A window of a length (not below a nanosecond), moved so that it lies in the step."""
        length = min(max(length, SHORTEST), self.step)
        start = min(max(start, 0.0), self.step - length)
        return Window(start, start + length, self.step)

    def zoomed(self, factor: float, around: float) -> Window:
        """``factor`` times as much time; ``around`` keeps its place if it is in the window, else the middle does."""
        around = around if self.shows(around) else self.middle
        length = min(max(self.length * factor, SHORTEST), self.step)
        return self.at(around - (around - self.start) / self.length * length, length)

    def panned(self, share: float) -> Window:
        """Moved by a share of its length."""
        return self.at(self.start + share * self.length, self.length)

    def around(self, start: float, end: float) -> Window:
        """What lies between two moments, with half as much on either side."""
        return self.at(start - (end - start) / 2, 2 * (end - start))

    def revealing(self, start: float, end: float) -> Window:
        """Moved, if need be, so that what lies between two moments begins in it."""
        if end < self.start or start > self.end or start < self.start < self.end < end:
            return self.at(start - self.length / 4, self.length)
        return self
