"""What the timelines look like, kept as files: a change of any screen is seen and agreed to, never an accident.

``UPDATE_SCREENS=1 pytest tests/test_screens.py`` writes the files again; look at the difference before committing it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from made_results import fsdp_result, pipeline_result

from emulator.view import plain
from emulator.view.app import TimelineApp

SCREENS = Path(__file__).parent / "data" / "screens"
MADE = {"fsdp": fsdp_result, "pipeline": pipeline_result}
PRESSED = {
    "whole": [],
    "next-wait": ["w", "plus"],
    "found": ["slash", *"backward", "enter", "z"],
    "links": ["tab"],
    "help": ["question_mark"],
    "unfolded": ["enter", "down"],
}


def check(name: str, found: str) -> None:
    """The screen is as it was when somebody last looked at it."""
    file = SCREENS / name
    if os.environ.get("UPDATE_SCREENS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), f"{file.name} has changed; see the module's docstring"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("made", sorted(MADE))
def test_the_printed_timeline(made: str, width: int) -> None:
    check(f"{made}-{width}.txt", plain.render(MADE[made](), width=width).plain + "\n")


@pytest.mark.parametrize("pressed", sorted(PRESSED))
@pytest.mark.parametrize("made", sorted(MADE))
def test_the_interactive_timeline(made: str, pressed: str) -> None:
    async def picture() -> str:
        app = TimelineApp(MADE[made]())
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press(*PRESSED[pressed])
            await pilot.pause()
            return app.export_screenshot(title="")

    check(f"{made}-{pressed}.svg", asyncio.run(picture()))
