"""The interactive timeline, driven by keys and mouse as a user would, without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from made_results import fsdp_result, pipeline_result
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Static

from emulator.result.build import Span, result
from emulator.result.schema import Result
from emulator.result.tables import LinkLoad, MemoryUse
from emulator.view.app import KEYS, Help, TimelineApp
from emulator.view.canvas import HEAD

Story = Callable[[TimelineApp, Pilot[None]], Awaitable[None]]


def tell(made: Result, story: Story, size: tuple[int, int] = (80, 24)) -> None:
    """Run the program on a screen of a size and let a story happen."""

    async def run() -> None:
        app = TimelineApp(made)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await story(app, pilot)

    asyncio.run(run())


def screen(app: TimelineApp) -> list[str]:
    """What is on the screen, line by line."""
    width, height = app.size
    lines = []
    for y in range(height):
        strip = app.screen._compositor.render_strips()[y]
        lines.append("".join(segment.text for segment in strip)[:width])
    return lines


def text_of(app: TimelineApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).content)


def selected(app: TimelineApp) -> str:
    op = app.model.selected_op()
    assert op is not None
    table = app.model.result.programs[app.model.result.ranks[op[0]].program]
    return f"{op[0]} {table.name[op[1]]} {table.phase[op[1]]} {table.microbatch[op[1]]}"


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (120, 40), (200, 60)])
def test_everything_fits_any_terminal(size: tuple[int, int]) -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        lines = screen(app)
        assert len(lines) == size[1] and all(len(line) == size[0] for line in lines)
        assert "step 330 ms" in lines[0] and "0 ms" in lines[1] and "busy" in lines[2]
        assert any("F" in line and "compute" in line for line in lines)
        assert "? keys" in lines[-1] or size[0] < 80

    tell(pipeline_result(), story, size)


def test_arrows_move_between_ops_and_streams() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        assert selected(app) == "0 aten::mm forward 0"
        await pilot.press("right", "right")
        assert selected(app) == "0 aten::mm forward 2"
        await pilot.press("left")
        assert selected(app) == "0 aten::mm forward 1"
        await pilot.press("end")
        assert selected(app) == "0 aten::mm backward 7"
        await pilot.press("home", "left")
        assert selected(app) == "0 aten::mm forward 0"
        await pilot.press(*["down"] * 3)
        assert selected(app).startswith("1 aten::mm forward")
        assert "class 1" in text_of(app, "pane") and "microbatch 0" in text_of(app, "pane")

    tell(pipeline_result(), story)


def test_zoom_goes_to_one_op_and_back() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        await pilot.press("right", "z")
        assert (app.model.window.start, app.model.window.end) == pytest.approx((5e-3, 25e-3))
        await pilot.press("plus")
        assert app.model.window.length == pytest.approx(10e-3)
        for _ in range(40):
            await pilot.press("plus")
        assert 0 < app.model.window.length <= 2e-9
        assert all(len(line) == 80 for line in screen(app))
        await pilot.press("0")
        assert (app.model.window.start, app.model.window.end) == (0, app.model.result.step_seconds)
        await pilot.press("minus")
        assert app.model.window.end == app.model.result.step_seconds
        await pilot.press("plus", "h", "h", "h", "h", "h")
        assert app.model.window.start == 0
        await pilot.press("l")
        assert app.model.window.start == pytest.approx(0.25 * app.model.window.length)

    tell(pipeline_result(), story)


def test_a_microbatch_that_is_wide_enough_shows_its_number() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        row = next(line for line in screen(app) if line.startswith("> compute"))
        assert "F1" in row and "B7" in row

    tell(pipeline_result(), story, (120, 30))


def test_search_and_its_matches() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"reduce_scatx", "backspace")
        assert text_of(app, "keys").startswith("/reduce_scat_")
        await pilot.press("enter")
        assert "1 of 4 found" in text_of(app, "keys")
        assert selected(app).startswith("0 c10d::_reduce_scatter_base_")
        await pilot.press("n")
        assert "2 of 4 found" in text_of(app, "keys")
        await pilot.press("N", "N")
        assert "no earlier op found" in text_of(app, "keys")
        await pilot.press("slash", *"layer", "space", "3", "enter")
        assert "of 4 found" in text_of(app, "keys")
        await pilot.press("slash", *"qqq", "enter")
        assert "nothing found for 'qqq'" in text_of(app, "keys")
        before = app.model.selected_op()
        await pilot.press("slash", "c", "q", "tab", "escape")
        assert app.model.selected_op() == before and "arrows" in text_of(app, "keys")
        await pilot.press("left")
        assert app.model.selected_op() is not None

    tell(fsdp_result(), story)


def test_keys_that_come_in_one_go_are_taken_in_order() -> None:
    """As a fast typist, or a paste over ssh, sends them: all before the first has been handled."""

    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        for key, character in [("slash", "/"), *((c, c) for c in "adam"), ("enter", "\r"), ("z", "z")]:
            app.post_message(Key(key, character))
        await pilot.pause(0.2)
        assert selected(app).startswith("0 aten::_fused_adamw_")
        assert app.model.window.length == pytest.approx(6e-3)

    tell(fsdp_result(), story)


def test_jumps_to_waits_bubbles_and_the_critical_path() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        await pilot.press("w")
        assert selected(app).startswith("0 recv")
        assert "waits" in text_of(app, "pane") and "for ranks 16-31" in text_of(app, "pane")
        await pilot.press("p")
        assert selected(app).startswith("1 send")
        await pilot.press("home", "b")
        assert selected(app).split()[1] == "aten::mm"
        seen = []
        app.model.select((0, 0))
        for _ in range(3):
            await pilot.press("c")
            seen.append(selected(app))
        assert len(set(seen)) == 3
        assert "on the critical path" in text_of(app, "pane")
        await pilot.press(*["c"] * 60)
        assert "no further critical op" in text_of(app, "keys")

    tell(pipeline_result(), story)


def test_a_class_unfolds_to_its_ranks() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        before = len(app.model.lines)
        await pilot.press("enter")
        assert len(app.model.lines) == before + 16 * 3
        assert any("rank 0" in line for line in screen(app))
        await pilot.press(*["down"] * 3)
        assert app.model.lines[app.model.selection.line].rank == 0
        assert app.model.selected_op() is not None
        await pilot.press("pagedown", "pagedown", "pageup", "space")
        assert len(app.model.lines) == before

    tell(pipeline_result(), story)


def test_panes_of_links_memory_and_legend() -> None:
    made = fsdp_result()
    made.link_loads = [LinkLoad("gpu0>leaf0", np.array([0.0, 34.5e-3]), np.array([50e9, 5e9]))]
    made.memory = [
        MemoryUse(0, "parameters", np.array([0.0]), np.array([20e9])),
        MemoryUse(0, "activations", np.array([0.0, 30e-3]), np.array([0.0, 40e9])),
    ]

    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        assert "all-gather" not in text_of(app, "pane")
        await pilot.press("tab")
        row = text_of(app, "pane").splitlines()[0]
        assert row.startswith("gpu0>leaf0") and row.count("9") == row.count("1")
        await pilot.press("tab")
        pane = text_of(app, "pane")
        assert pane.splitlines()[0].startswith("all") and {"2", "7"} <= set(pane.splitlines()[0])
        assert "peak 60 GB at 30 ms; digits: tenths of 80 GB on H100-SXM" in pane
        await pilot.press("tab")
        assert "reduce-scatter" in text_of(app, "pane")
        await pilot.press("tab")
        assert "all_gather" in text_of(app, "pane") or "aten::mm" in text_of(app, "pane")

    tell(made, story)


def test_panes_say_what_is_not_in_the_result() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab")
        assert "no link loads over time" in text_of(app, "pane")
        await pilot.press("tab")
        assert "no memory over time" in text_of(app, "pane")

    tell(fsdp_result(), story)


def test_help_lists_every_key_and_goes_away() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        shown = "\n".join(screen(app))
        for key in KEYS:
            assert key.does[:40] in shown
        await pilot.press("x")
        assert not isinstance(app.screen, Help)

    tell(fsdp_result(), story, (100, 40))


def test_the_mouse_selects_drags_and_zooms() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        cell = app.canvas.cells / app.model.result.step_seconds
        await pilot.click(app.canvas, offset=(int(app.canvas.label + 45e-3 * cell), HEAD + 1))
        assert selected(app) == "0 aten::mm forward 4"
        app.model.zoom(0.5, 0.1)
        start = app.model.window.start
        await pilot.mouse_down(app.canvas, offset=(40, HEAD + 1))
        await pilot.hover(app.canvas, offset=(30, HEAD + 1))
        await pilot.mouse_up(app.canvas, offset=(30, HEAD + 1))
        assert app.model.window.start == pytest.approx(start + 10 / app.canvas.cells * app.model.window.length)

    tell(pipeline_result(), story)


def test_a_new_size_is_used_at_once() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(140, 50)
        await pilot.pause()
        assert all(len(line) == 140 for line in screen(app))
        assert app.canvas.size.width == 140
        await pilot.resize_terminal(40, 12)
        await pilot.pause()
        assert all(len(line) == 40 for line in screen(app))

    tell(pipeline_result(), story)


def test_a_result_without_ops_is_shown_as_such() -> None:
    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        for key in ("right", "down", "up", "z", "plus", "w", "b", "c", "n", "p", "enter", "home", "end", "tab"):
            await pilot.press(key)
        assert "class 0: rank 0" in "\n".join(screen(app))

    made = result([[], [Span("mm", 0, 1)]])
    tell(made, story)


def test_without_colour_letters_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def story(app: TimelineApp, pilot: Pilot[None]) -> None:
        assert any("compute" in line and "F" in line and "B" in line for line in screen(app))

    tell(pipeline_result(), story)
