"""Screenshots of the interactive timeline: a data-parallel step, a pipeline, experts, and a step of 16,384 ranks.

python docs/screenshots.py [FOLDER]    (default: docs)
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import emulator
from emulator.view.app import TimelineApp

SHOTS = {  # picture: trace, topology, keys pressed before it is taken
    "view-llama-8b": ("llama.json", "fattree", ["end", "b", "plus", "plus"]),
    "view-memory-8b": ("llama.json", "fattree", ["tab", "tab"]),
    "view-moe-2048": ("deepseek-v3-2048.json.zst", "fattree", ["tab"]),
    "view-pipeline-16384": ("llama-405b-16384.json.zst", "fattree", ["b"]),
    "view-mixtral-64": ("mixtral-64.json.zst", "torus", ["slash", *"all_to_all", "enter", "plus", "plus"]),
}


async def shoot(name: str, folder: Path) -> None:
    """Replay, open the timeline in a terminal of 110 x 32, press the keys, write the picture."""
    trace, topology, keys = SHOTS[name]
    app = TimelineApp(emulator.run(trace, topology))
    async with app.run_test(size=(110, 32)) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        picture = app.export_screenshot(title=f"emu view: {trace} on {topology}")
    (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    for shot in SHOTS:
        asyncio.run(shoot(shot, Path(sys.argv[1] if sys.argv[1:] else "docs")))
