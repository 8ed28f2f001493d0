"""What the interactive timeline shows, without a terminal: its lines, the window of time, and the selected op.

A *line* is the title of a rank class or rank, or one of its streams. A class can be unfolded to its ranks, whose
streams look like those of the class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from emulator.report.ranks import rank_ranges
from emulator.result.schema import Result
from emulator.view import jumps
from emulator.view.jumps import Found, Op
from emulator.view.rows import Row, in_order, prepare
from emulator.view.window import Window

TITLE = -1
CLASS = -1


class Line(NamedTuple):
    """A line on the screen: ``rank`` is CLASS for the class as a whole, ``stream`` is TITLE or the number of a row."""

    rank_class: int
    rank: int
    stream: int


@dataclass(frozen=True)
class Selection:
    """The selected line, and which of its spans (a position in its row; -1: none)."""

    line: int
    span: int = -1


class Timelines:
    """A result on the screen. Moves change ``window``, ``selection`` and ``lines`` in place."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.window = Window.whole(result.shown_seconds)
        self.unfolded: frozenset[int] = frozenset()
        self.found: Found | None = None
        rows: list[list[Row]] = [[] for _ in result.ranks]
        for line in result.timeline:
            rows[line.rank_class].append(prepare(result.programs[result.ranks[line.rank_class].program], line))
        self.rows = [in_order(own) for own in rows]
        self.lines = self._all_lines()
        first = next((i for i, line in enumerate(self.lines) if line.stream != TITLE), 0)
        self.selection = Selection(first)
        self.moment = 0.0  # kept while moving from line to line, so that one comes back to where one was
        self.to_edge(last=False)
        self._jumps: dict[str, Found] = {}

    # -- lines -----------------------------------------------------------------------------------------------------

    def row(self, line: int) -> Row | None:
        """What a line draws; None for a title."""
        if not 0 <= line < len(self.lines):
            return None
        at = self.lines[line]
        return None if at.stream == TITLE else self.rows[at.rank_class][at.stream]

    def fold(self) -> None:
        """Unfold the selected class to its ranks, or fold it again."""
        at = self.lines[self.selection.line]
        self.unfolded ^= {at.rank_class}
        self.lines = self._all_lines()
        self.selection = replace(self.selection, line=self.lines.index(at._replace(rank=CLASS)))

    def _all_lines(self) -> list[Line]:
        return [line for i in range(len(self.result.ranks)) for line in self._lines_of(i)]

    def _lines_of(self, rank_class: int) -> list[Line]:
        ranks = [CLASS]
        if rank_class in self.unfolded:
            ranges = rank_ranges(self.result.ranks[rank_class].ranks)
            ranks += [rank for first, last in ranges for rank in range(first, last + 1)]
        streams = [TITLE, *range(len(self.rows[rank_class]))]
        return [Line(rank_class, rank, stream) for rank in ranks for stream in streams]

    # -- window ----------------------------------------------------------------------------------------------------

    def zoom(self, factor: float, around: float | None = None) -> None:
        """Show ``factor`` times as much time; a moment, by default the selection's middle, keeps its place."""
        times = self.selected_times()
        if around is None:
            around = self.window.middle if times is None else sum(times) / 2
        self.window = self.window.zoomed(factor, around)

    def zoom_to_selection(self) -> None:
        """Show the selected op with as much time around it."""
        times = self.selected_times()
        if times is not None:
            self.window = self.window.around(*times)

    # -- selection -------------------------------------------------------------------------------------------------

    def selected_op(self) -> Op | None:
        """Class and row of the selected op."""
        row = self.row(self.selection.line)
        if row is None or not 0 <= self.selection.span < len(row.op):
            return None
        return row.rank_class, int(row.op[self.selection.span])

    def selected_times(self) -> tuple[float, float] | None:
        """Start and end of the selected op."""
        row = self.row(self.selection.line)
        if row is None or not 0 <= self.selection.span < len(row.op):
            return None
        return float(row.start[self.selection.span]), float(row.end[self.selection.span])

    def move(self, lines: int) -> None:
        """Select another line, and there the op nearest in time."""
        self._select_near(self.selection.line + lines, self.moment)

    def step(self, direction: int) -> None:
        """Select the next (1) or previous (-1) op of the line; ops that take no time are passed over."""
        row = self.row(self.selection.line)
        if row is None or not len(row.long):
            return
        side = np.searchsorted(row.long, self.selection.span, "right" if direction > 0 else "left")
        at = int(side) if direction > 0 else int(side) - 1
        if 0 <= at < len(row.long):
            self.selection = replace(self.selection, span=int(row.long[at]))
            self._reveal()

    def to_edge(self, *, last: bool) -> None:
        """Select the first or last op of the line."""
        row = self.row(self.selection.line)
        if row is not None and len(row.long):
            self.selection = replace(self.selection, span=int(row.long[-1 if last else 0]))
            self._reveal()

    def select_at(self, line: int, moment: float) -> None:
        """Select a line (the nearest there is) and its op at, or nearest to, a moment."""
        self.moment = moment
        self._select_near(line, moment)

    def _select_near(self, line: int, moment: float) -> None:
        line = min(max(line, 0), max(len(self.lines) - 1, 0))
        row = self.row(line)
        span = -1
        if row is not None and len(row.long):
            away = np.maximum(row.start[row.long] - moment, moment - row.end[row.long])
            span = int(row.long[np.argmin(np.maximum(away, 0.0))])
        self.selection = Selection(line, span)

    def select(self, op: Op) -> None:
        """Select an op on the lines of its class."""
        rank_class, number = op
        for stream, row in enumerate(self.rows[rank_class]):
            at = np.flatnonzero(row.op == number)
            if len(at):
                self.selection = Selection(self.lines.index(Line(rank_class, CLASS, stream)), int(at[0]))
                self._reveal()
                return

    def _reveal(self) -> None:
        """Have the window show the selected op; what is selected now decides where moves between lines go."""
        times = self.selected_times()
        if times is not None:
            self.window = self.window.revealing(*times)
            self.moment = sum(times) / 2

    # -- jumps -----------------------------------------------------------------------------------------------------

    def search(self, text: str) -> int:
        """Find ops (see ``jumps.search``) and return how many there are."""
        self.found = jumps.search(self.result, text)
        return len(self.found.op)

    def to_found(self, direction: int) -> bool:
        """Select the next or previous op found; whether there is one."""
        return self.found is not None and self._jump(self.found, direction)

    def found_position(self) -> int | None:
        """Place of the selected op among those found; None if it is not one of them."""
        return None if self.found is None else self.found.position(self.selected_op())

    def to_wait(self, direction: int) -> bool:
        """Select the next or previous op of this class that waits for participants."""
        return self._jump(self._known("waits", jumps.waits).of_class(self.here()), direction)

    def to_gap(self, direction: int) -> bool:
        """Select the next or previous op of this class before which nothing computed for a while."""
        return self._jump(self._known("gaps", jumps.gaps).of_class(self.here()), direction)

    def to_critical(self, direction: int) -> bool:
        """Select the next or previous op on the critical path, whichever rank it is on."""
        return self._jump(self._known("critical", jumps.critical), direction)

    def on_critical_path(self, op: Op) -> bool:
        """Whether an op is on the critical path."""
        return self._known("critical", jumps.critical).position(op) is not None

    def here(self) -> int:
        """The rank class of the selected line."""
        return self.lines[self.selection.line].rank_class if self.lines else 0

    def _known(self, name: str, find: Callable[[Result], Found]) -> Found:
        if name not in self._jumps:
            self._jumps[name] = find(self.result)
        return self._jumps[name]

    def _jump(self, found: Found, direction: int) -> bool:
        times = self.selected_times()
        moment = self.window.start if times is None else times[0]
        target = found.beside(moment, self.selected_op(), direction)
        if target is None:
            return False
        self.select(target)
        return True
