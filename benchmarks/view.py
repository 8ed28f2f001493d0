"""How long the timeline takes to draw a screen: a million spans, and 16,384 ranks. The target is 50 ms.

python benchmarks/view.py
"""

from __future__ import annotations

import asyncio
import time

import numpy as np

from emulator.report.partition import fill
from emulator.result import build
from emulator.result.build import Span
from emulator.result.schema import Result
from emulator.result.tables import OpTable, Timeline
from emulator.view.app import TimelineApp

SIZES = ((80, 24), (200, 60))
TARGET_SECONDS = 0.05


def million_spans(classes: int = 64, spans: int = 16_384) -> Result:
    """A result with about a million spans: each class computes and gathers in turn, on two streams."""
    kinds = [
        Span("aten::mm", 0, 1, phase="forward"),
        Span("c10d::_allgather_base_", 0, 1, "collective", "fsdp", group="fsdp", collective="all_gather"),
        Span("aten::mm", 0, 1, phase="backward"),
        Span("c10d::_reduce_scatter_base_", 0, 1, "collective", "fsdp", group="fsdp", collective="reduce_scatter"),
    ]
    table: OpTable = build.op_table([kinds[i % 4] for i in range(spans)])
    random = np.random.default_rng(0)
    made = build.result([[Span("aten::mm", 0.0, 1.0)]] * classes, [256] * classes)
    made.programs = [table] * classes
    made.timeline = []
    for rank_class in range(classes):
        for stream, rows in (("compute", np.arange(0, spans, 2)), ("fsdp", np.arange(1, spans, 2))):
            seconds = random.exponential(1e-3, len(rows))
            end = np.cumsum(seconds)
            start = end - seconds * 0.8
            nothing = np.full(len(rows), np.nan)
            none = np.full(len(rows), -1, dtype=np.int64)
            transfer = start if stream == "fsdp" else nothing
            made.timeline.append(Timeline(rank_class, stream, rows, start, start, transfer, end, none, none))
    made.step_seconds = max(float(line.end[-1]) for line in made.timeline)
    return made


def ranks_16384() -> Result:
    """One class of 16,384 ranks, to be unfolded."""
    spans = [Span("aten::mm", i, i + 0.7, phase="forward", layer=i % 32) for i in range(2000)]
    return fill(build.result([spans], [16_384]))


async def redraws(made: Result, size: tuple[int, int], unfold: bool) -> tuple[float, float, float]:
    """Seconds until the first screen, and of the median and the longest redraw while zooming in and panning."""
    began = time.perf_counter()
    app = TimelineApp(made)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        if unfold:
            app.model.fold()
            app.show()
        first = time.perf_counter() - began
        seconds = []
        for i in range(40):
            if i % 4:
                app.model.window = app.model.window.panned(0.25)
            else:
                app.model.zoom(0.5 if app.model.window.length > 1e-3 else 1e6)
            start = time.perf_counter()
            app.show()
            for y in range(app.canvas.size.height):
                app.canvas.render_line(y)
            seconds.append(time.perf_counter() - start)
    return first, float(np.median(seconds)), max(seconds)


def main() -> None:
    """Print a line per result and size; the exit code says whether all kept the target."""
    slow = False
    for name, made, unfold in (
        ("a million spans, 64 classes", million_spans(), False),
        ("16,384 ranks unfolded", ranks_16384(), True),
    ):
        for size in SIZES:
            first, median, worst = asyncio.run(redraws(made, size, unfold))
            print(
                f"{name}, {size[0]}x{size[1]}: opens in {first:.2f} s, "
                f"redraws in {1e3 * median:.1f} ms (median), {1e3 * worst:.1f} ms (longest)"
            )
            slow |= median > TARGET_SECONDS
    raise SystemExit(slow)


if __name__ == "__main__":
    main()
