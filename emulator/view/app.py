"""The interactive timeline (``emu view RESULT``): a full-screen program for the terminal, on textual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

from emulator.report import figures
from emulator.report.palette import IDLE, legend
from emulator.result.schema import Result
from emulator.view import jumps, loads
from emulator.view.canvas import ZOOM, Canvas
from emulator.view.details import describe
from emulator.view.model import Timelines
from emulator.view.plain import check_window, clipped, omissions, title
from emulator.view.rows import KINDS

PANES = ("details", "links", "memory", "legend")


@dataclass(frozen=True)
class Binds:
    """Keys that do one thing: as textual names them, as a person does, what they do, and the action with arguments."""

    keys: str
    shown: str
    does: str
    action: str


KEYS = (
    Binds("left", "left right", "previous, next op of the stream", "step(-1)"),
    Binds("right", "", "", "step(1)"),
    Binds("up", "up down", "line above, below", "move(-1)"),
    Binds("down", "", "", "move(1)"),
    Binds("pageup", "PgUp PgDn", "a screen up, down", "page(-1)"),
    Binds("pagedown", "", "", "page(1)"),
    Binds("home", "Home End", "first, last op of the stream", "edge(0)"),
    Binds("end", "", "", "edge(1)"),
    Binds("plus,equals_sign", "+ -", "zoom in, out around the selected op", "zoom(-1)"),
    Binds("minus", "", "", "zoom(1)"),
    Binds("h,shift+left", "h l", "pan left, right (also shift with left, right)", "pan(-1)"),
    Binds("l,shift+right", "", "", "pan(1)"),
    Binds("0", "0", "the whole step", "whole"),
    Binds("z", "z", "zoom to the selected op", "zoom_to_selection"),
    Binds("enter,space", "Enter", "unfold a class to its ranks, fold it", "fold"),
    Binds("slash", "/", "search: name, module, kind, group, `layer 3`, `microbatch 2`", "search"),
    Binds("n", "n N", "next, previous op found", "jump('found',1)"),
    Binds("N", "", "", "jump('found',-1)"),
    Binds("w", "w W", "next, previous wait for participants in this class", "jump('wait',1)"),
    Binds("W", "", "", "jump('wait',-1)"),
    Binds("b", "b B", "next, previous compute after a bubble or other gap in this class", "jump('gap',1)"),
    Binds("B", "", "", "jump('gap',-1)"),
    Binds("c", "c C", "next, previous op on the critical path, on any rank", "jump('critical',1)"),
    Binds("C", "", "", "jump('critical',-1)"),
    Binds("p", "p", "the op's next partner on another rank", "partner"),
    Binds("tab", "Tab", "details, link loads, memory, legend", "pane"),
    Binds("question_mark,f1", "?", "these keys", "help"),
    Binds("q,ctrl+c", "q", "quit", "quit"),
)
_NAMES = {"found": "op found", "wait": "wait in this class", "gap": "gap in this class", "critical": "critical op"}


class Help(ModalScreen[None]):
    """The keys; any key closes it."""

    CSS = "Help { align: center middle; } Help Static { width: auto; max-width: 100%; border: solid; padding: 0 1; }"

    def compose(self) -> ComposeResult:
        """Keys beside what they do."""
        lines = [f"{key.shown:<11} {key.does}" for key in KEYS if key.shown]
        mouse = "mouse       click selects, drag pans; wheel scrolls, with ctrl zooms, with shift pans"
        yield Static(Text("\n".join([*lines, mouse, "underlined: on the critical path. Any key closes this."])))

    def on_key(self) -> None:
        """Close it."""
        self.dismiss()


class TimelineApp(App[None]):
    """The timeline of one result."""

    CSS = """
    Screen { layers: base; }
    #title, #keys { height: 1; }
    #keys { dock: bottom; }
    Canvas { height: 1fr; }
    #pane { height: auto; max-height: 40%; min-height: 5; border-top: solid; overflow-y: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding(key.keys, key.action, key.does, show=False, priority=key.keys == "tab") for key in KEYS
    ]

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.model = Timelines(result)
        self.canvas = Canvas(self.model)
        self.pane = PANES[0]
        self.say = ""  # what the last key had to say
        self.typed: str | None = None  # the search so far, while it is typed

    def compose(self) -> ComposeResult:
        """Title, timeline, pane and keys (or the search that is typed)."""
        yield Static(id="title", markup=False)
        yield self.canvas
        yield Static(id="pane", markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """The timeline has the keys from the start."""
        self.canvas.focus()
        self.show()

    def on_resize(self) -> None:
        """Everything is written anew for the new size."""
        self.call_after_refresh(self.show)

    def on_canvas_moved(self) -> None:
        """The mouse has selected something."""
        self.say = ""
        self.show()

    def show(self) -> None:
        """Write title, pane and keys for what is selected, and have the timeline drawn."""
        op = self.model.selected_op()
        self.canvas.partners = [] if op is None else jumps.partners(self.model.result, op)
        self.canvas.follow()
        width = max(self.size.width, 20)
        window = self.model.window
        shown = f"{figures.seconds(window.start)} to {figures.seconds(window.end)}"
        self.query_one("#title", Static).update(clipped(f"{title(self.model.result, width)}; shown {shown}", width))
        self.query_one("#pane", Static).update(self._pane_text(width))
        keys = "arrows  +- zoom  / search  w b c jump  Enter unfold  Tab pane  ? keys  q quit"
        if self.typed is not None:
            keys = f"/{self.typed}_   Enter searches, Escape leaves"
        self.query_one("#keys", Static).update(clipped(self.say if self.say and self.typed is None else keys, width))

    def _pane_text(self, width: int) -> Text:
        result, op = self.model.result, self.model.selected_op()
        label, cells = self.canvas.label, self.canvas.cells
        if self.pane == "legend":
            return Text("\n").join([legend([*KINDS, IDLE], width), *(Text(line) for line in omissions(result))])
        if self.pane == "links":
            lines = loads.links(result, self.model.window, label, cells)
        elif self.pane == "memory":
            lines = loads.memory(result, self.model.window, label, cells, self.model.here())
        elif op is None:
            lines = ["No op is selected: up and down choose a stream, left and right an op."]
        else:
            lines = describe(result, op, critical=self.model.on_critical_path(op))
        return Text("\n".join(lines))

    # -- what keys do ----------------------------------------------------------------------------------------------

    def _after(self, move: Callable[[], object]) -> None:
        """Do something to the model and show it."""
        self.say = ""
        move()
        self.show()

    def action_step(self, ops: int) -> None:
        """Select a neighbour on the stream."""
        self._after(lambda: self.model.step(ops))

    def action_move(self, lines: int) -> None:
        """Select a line above or below."""
        self._after(lambda: self.model.move(lines))

    def action_page(self, pages: int) -> None:
        """Select a line a screen away."""
        self._after(lambda: self.model.move(pages * self.canvas.height_of_rows))

    def action_edge(self, last: int) -> None:
        """Select the first or last op of the stream."""
        self._after(lambda: self.model.to_edge(last=bool(last)))

    def action_zoom(self, direction: int) -> None:
        """Zoom in or out."""
        self._after(lambda: self.model.zoom(ZOOM ** (-direction)))

    def action_pan(self, direction: int) -> None:
        """Move the window by a quarter."""

        def pan() -> None:
            self.model.window = self.model.window.panned(0.25 * direction)

        self._after(pan)

    def action_whole(self) -> None:
        """Show the whole step."""

        def whole() -> None:
            self.model.window = self.model.window.whole(self.model.result.shown_seconds)

        self._after(whole)

    def action_zoom_to_selection(self) -> None:
        """Zoom to the selected op."""
        self._after(self.model.zoom_to_selection)

    def action_fold(self) -> None:
        """Unfold or fold the class."""
        self._after(self.model.fold)

    def action_jump(self, what: str, direction: int) -> None:
        """Jump to the next or previous of something."""
        jump = {
            "found": self.model.to_found, "wait": self.model.to_wait, "gap": self.model.to_gap,
            "critical": self.model.to_critical,
        }[what]  # fmt: skip
        self.say = ""
        if what == "found" and self.model.found is None:
            self.say = "nothing was searched for yet: / searches"
        elif not jump(direction):
            self.say = f"no {'further' if direction > 0 else 'earlier'} {_NAMES[what]}"
        elif what == "found":
            self.say = self._place_found()
        self.show()

    def action_partner(self) -> None:
        """Select the next participant of the same communication."""
        op = self.model.selected_op()
        others = sorted(jumps.partners(self.model.result, op)) if op else []
        if op and others:
            self.model.select(next((other for other in others if other > op), others[0]))
        self.say = "" if others else "this op has no partner on another rank"
        self.show()

    def action_pane(self) -> None:
        """Show the next pane."""
        self.pane = PANES[(PANES.index(self.pane) + 1) % len(PANES)]
        self._after(lambda: None)

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    # -- search ----------------------------------------------------------------------------------------------------
    # Typed here and not in a widget of its own: keys that come in one go must not overtake a change of the focus.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a search is typed keys are text (this is for Tab, which textual looks at before anything else)."""
        return self.typed is None

    def action_search(self) -> None:
        """Begin to type a search."""
        self.say = ""
        self.typed = ""
        self.show()

    def on_key(self, event: Key) -> None:
        """Take what is typed; Enter searches, Escape leaves."""
        if self.typed is None:
            return
        event.prevent_default()  # no bindings
        if event.key == "enter":
            text, self.typed = self.typed, None
            self._search(text)
        elif event.key == "escape":
            self.typed = None
        elif event.key == "backspace":
            self.typed = self.typed[:-1]
        elif event.character is not None and event.is_printable:
            self.typed += event.character
        self.show()

    def _search(self, text: str) -> None:
        """Search, and go to the first op found from here on."""
        number = self.model.search(text)
        here = self.model.found_position()
        if here is None and not self.model.to_found(1):
            self.model.to_found(-1)
        self.say = self._place_found() if number else f"nothing found for {text!r}"

    def _place_found(self) -> str:
        place, number = self.model.found_position(), len(self.model.found.op) if self.model.found else 0
        return f"{(place or 0) + 1} of {number} found; n next, N previous"


def show(result: Result, start: float = 0.0, end: float | None = None) -> None:
    """Run the timeline in this terminal until the user leaves it; it opens with a window of time (seconds).

    Raises InputError if the window is empty or outside the step, or if there is nothing to show.
    """
    end = check_window(result, start, end, None)
    app = TimelineApp(result)
    app.model.window = app.model.window.at(start, end - start)
    app.run()
