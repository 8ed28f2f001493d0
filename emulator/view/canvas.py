"""The timeline as a widget of the terminal: draws the lines that are on the screen, and nothing else."""

from __future__ import annotations

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.events import Click, MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from emulator.report.palette import IDLE
from emulator.result.tables import Floats
from emulator.view import jumps
from emulator.view.axis import axis
from emulator.view.model import CLASS, TITLE, Timelines
from emulator.view.plain import class_title, clipped, label_width, runs
from emulator.view.rows import KINDS, Covered, Row, draw

HEAD = 2  # lines of the time axis
WHEEL = 3  # lines that a turn of the wheel scrolls
ZOOM = 0.5
_BUSY = len("100 % ")

_STYLES = [Style.parse(style) for _, _, style in KINDS]
_IDLE = Style.parse(IDLE[2])
_PLAIN, _BOLD = Style(), Style(bold=True)
_MARKED = Style(underline=True, bold=True)
_CHOSEN = Style(reverse=True)


class Canvas(Widget, can_focus=True):
    """Axis and rows of ``Timelines``. Posts ``Moved`` when the mouse selected or moved something."""

    class Moved(Message):
        """Selection or window have changed."""

    def __init__(self, model: Timelines) -> None:
        super().__init__()
        self.model = model
        self.top = 0
        self.partners: list[jumps.Op] = []
        self._drawn: dict[tuple[int, int], tuple[str, list[int], list[bool], str]] = {}
        self._drawn_for: tuple[object, int] = (None, 0)
        self._marks: dict[tuple[int, int], Covered] = {}
        self._grip: tuple[int, float] | None = None  # column, and start of the window, where a drag began
        self._dragged = False
        self._label = label_width([row.stream for rows in model.rows for row in rows], 80)

    # -- geometry --------------------------------------------------------------------------------------------------

    @property
    def label(self) -> int:
        """Columns of the names at the left."""
        return min(self._label, max(self.size.width // 3, 8))

    @property
    def cells(self) -> int:
        """Columns of time."""
        return max(1, self.size.width - self.label - _BUSY)

    @property
    def height_of_rows(self) -> int:
        """Lines of rows on the screen."""
        return max(1, self.size.height - HEAD)

    def moment_at(self, x: int) -> float:
        """The time under a column of the screen, seconds."""
        window = self.model.window
        return window.start + (x - self.label + 0.5) / self.cells * window.length

    def edges(self) -> Floats:
        """Borders of the cells, seconds."""
        window = self.model.window
        return np.linspace(window.start, window.end, self.cells + 1)

    def follow(self) -> None:
        """Scroll so that the selected line is on the screen, with the title of its class where there is room."""
        line = self.model.selection.line
        self.top = min(self.top, max(0, line - 1))
        self.top = max(self.top, line - self.height_of_rows + 1)
        self.refresh()

    # -- drawing ---------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width = self.size.width
        line = self.top + y - HEAD
        if y < HEAD:
            segments = [self._axis(y)]
        elif line >= len(self.model.lines):
            segments = []
        elif self.model.lines[line].stream == TITLE:
            segments = [self._title(line)]
        else:
            at = self.model.lines[line]
            row = self.model.rows[at.rank_class][at.stream]
            chosen = line == self.model.selection.line
            name = f"{'>' if chosen else ' '} {clipped(row.stream, self.label - 3)}"
            segments = [Segment(f"{name:<{self.label}}", _BOLD if chosen else _PLAIN)]
            segments += self._segments(row, at.stream, line)
        return Strip(segments).adjust_cell_length(width, _PLAIN)  # without a style NO_COLOR would fail

    def _axis(self, y: int) -> Segment:
        window = self.model.window
        text = " " * self.label + axis(window.start, window.end, self.cells)[y]
        return Segment(f"{text:<{self.label + self.cells}}" + ("  busy" if y else ""), _PLAIN)

    def _title(self, line: int) -> Segment:
        at = self.model.lines[line]
        name = class_title(self.model.result.ranks[at.rank_class]) if at.rank == CLASS else f"  rank {at.rank}"
        chosen = line == self.model.selection.line
        return Segment(clipped(name, self.size.width), _BOLD + _CHOSEN if chosen else _BOLD)

    def _segments(self, row: Row, stream: int, line: int) -> list[Segment]:
        letters, kinds, critical, busy = self._cells_of(row, stream)
        chosen = self._chosen_cells(row, line)
        states = [(kind, mark, cell in chosen) for cell, (kind, mark) in enumerate(zip(kinds, critical, strict=True))]
        numbers = {state: i for i, state in enumerate(dict.fromkeys(states))}
        segments = []
        for first, end in runs([numbers[state] for state in states]):
            kind, mark, picked = states[first]
            style = _IDLE if kind < 0 else _STYLES[kind]
            style = style + _MARKED if mark else style
            segments.append(Segment(letters[first:end], style + _CHOSEN if picked else style))
        return [*segments, Segment(busy, _PLAIN)]

    def _cells_of(self, row: Row, stream: int) -> tuple[str, list[int], list[bool], str]:
        """Letters, kinds, and which cells lie on the critical path; ranks of a class share what was drawn."""
        state = (self.model.window, self.cells)
        if self._drawn_for != state:
            self._drawn_for, self._drawn = state, {}
        key = (row.rank_class, stream)
        if key not in self._drawn:
            edges = self.edges()
            drawn = draw(row, edges, IDLE[0])
            marks = self._critical(row, stream).seconds(edges) >= 0.5 * (edges[1] - edges[0])
            self._drawn[key] = (drawn.letters, drawn.kinds, marks.tolist(), f"{100 * drawn.busy:>{_BUSY - 2}.0f} %")
        return self._drawn[key]

    def _critical(self, row: Row, stream: int) -> Covered:
        """The part of a row that is on the critical path."""
        key = (row.rank_class, stream)
        if key not in self._marks:
            path = self.model.result.path
            if path is None:
                self._marks[key] = Covered.of(np.empty(0), np.empty(0))
            else:
                own = (path.rank_class == row.rank_class) & np.isin(path.op, row.op)
                own &= path.what.codes != (path.what.values.index("host") if "host" in path.what.values else -1)
                self._marks[key] = Covered.of(path.start[own], path.end[own])
        return self._marks[key]

    def _chosen_cells(self, row: Row, line: int) -> range:
        """Cells of the selected op, or of its partner in this row."""
        ops = [op for rank_class, op in self.partners if rank_class == row.rank_class]
        spans = [int(i) for i in np.flatnonzero(np.isin(row.op, ops))] if ops else []
        if line == self.model.selection.line and self.model.selection.span >= 0:
            spans = [self.model.selection.span]
        if not spans:
            return range(0)
        window = self.model.window
        cell = window.length / self.cells
        first = int((row.start[spans[0]] - window.start) / cell)
        last = int((row.end[spans[0]] - window.start) / cell)
        return range(max(0, first), min(self.cells, max(first + 1, last)))

    # -- mouse -----------------------------------------------------------------------------------------------------

    def on_click(self, event: Click) -> None:
        """Select what is under the mouse."""
        if event.y >= HEAD and not self._dragged:
            self.model.select_at(self.top + event.y - HEAD, self.moment_at(event.x))
            self.post_message(self.Moved())

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Scroll, or with control zoom out, with shift pan right."""
        self._wheel(1, event)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Scroll, or with control zoom in, with shift pan left."""
        self._wheel(-1, event)

    def _wheel(self, direction: int, event: MouseScrollUp | MouseScrollDown) -> None:
        if event.ctrl:
            self.model.zoom(ZOOM if direction < 0 else 1 / ZOOM, self.moment_at(event.x))
        elif event.shift:
            self.model.window = self.model.window.panned(0.1 * direction)
        else:
            most = max(0, len(self.model.lines) - self.height_of_rows)
            self.top = min(max(0, self.top + WHEEL * direction), most)
        event.stop()
        self.refresh()

    def on_mouse_down(self, event: MouseDown) -> None:
        """A drag may begin."""
        self._grip, self._dragged = (event.x, self.model.window.start), False
        self.capture_mouse()

    def on_mouse_move(self, event: MouseMove) -> None:
        """Pan with the mouse."""
        if self._grip is not None and event.x != self._grip[0]:
            self._dragged = True
            window = self.model.window
            moved = (event.x - self._grip[0]) / self.cells * window.length
            self.model.window = window.at(self._grip[1] - moved, window.length)
            self.post_message(self.Moved())

    def on_mouse_up(self, _event: MouseUp) -> None:
        """The drag is over."""
        self._grip = None
        self.release_mouse()
