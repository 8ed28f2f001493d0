"""The timeline as a picture for documents: SVG (the plain timeline, as text) and PNG (drawn finer than letters)."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.errors import InputError
from emulator.result.schema import Result
from emulator.view import plain
from emulator.view.rows import KINDS, SHOWN_FROM, Row, in_order, prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PIXELS = 1600  # of the time axis
_ROW_INCHES = 0.22
_WIDTH_INCHES = 12.0
_COLOUR = re.compile(r"on (#[0-9a-f]{6})")


def svg(result: Result, *, width: int = 120, **window: Any) -> str:
    """The plain timeline as an SVG document; ``window`` as for ``plain.render``."""
    from rich._export_format import CONSOLE_SVG_FORMAT  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    out = Console(width=width, file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor")
    out.print(plain.render(result, width=width, **window))
    without_fonts = re.sub(r"\s*@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.S)  # nothing to download
    return out.export_svg(title=plain.title(result, width), code_format=without_fonts, unique_id="timeline")


def png(result: Result, *, start: float = 0.0, end: float | None = None, classes: Sequence[int] | None = None) -> bytes:
    """The timeline as a PNG; arguments as for ``plain.render``. Raises InputError where matplotlib is not installed."""
    end = plain.check_window(result, start, end, classes)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (slow to load)
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise InputError("matplotlib is not installed", remedy="pip install matplotlib, or use --svg") from None
    chosen = plain.chosen_classes(result, classes)
    rows = [row for i in chosen for row in _rows(result, i)]
    figure = Figure(figsize=(_WIDTH_INCHES, 1.1 + _ROW_INCHES * max(len(rows), 1)), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, result, rows, start, end)
    data = io.BytesIO()
    figure.set_canvas(FigureCanvasAgg(figure))
    figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def _rows(result: Result, rank_class: int) -> list[Row]:
    table = result.programs[result.ranks[rank_class].program]
    return in_order([prepare(table, line) for line in result.timeline if line.rank_class == rank_class])


def _draw(axes: Axes, result: Result, rows: list[Row], start: float, end: float) -> None:
    """Colour by pixel what fills it most; names at the left, time below, kinds above."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if end >= f), ("ns", 1e-9))
    colours = np.array([_rgb(style) for _, _, style in KINDS] + [(1.0, 1.0, 1.0)])
    edges = np.linspace(start, end, _PIXELS + 1)
    cell = edges[1] - edges[0]
    used: set[int] = set()
    image = np.ones((max(len(rows), 1), _PIXELS, 3))
    for i, row in enumerate(rows):
        filled = row.filled(edges)
        kinds = row.kinds if len(row.kinds) else np.array([-1])
        best = np.where(filled.sum(axis=0) >= SHOWN_FROM * cell, kinds[filled.argmax(axis=0)], -1)
        image[i] = colours[best]
        used |= set(np.unique(best[best >= 0]).tolist())
        _numbers(axes, row, i, start, end, factor)
    extent = (start / factor, end / factor, max(len(rows), 1) - 0.5, -0.5)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
    axes.set_yticks(
        range(len(rows)), [f"{result.ranks[row.rank_class].ranks}  {row.stream}" for row in rows], fontsize=7
    )
    for i in range(1, len(rows)):
        axes.axhline(i - 0.5, color="white", linewidth=2 if rows[i].rank_class == rows[i - 1].rank_class else 5)
    axes.set_xlabel(f"time, {unit}")
    patches = [Patch(color=colours[kind], label=KINDS[kind][1]) for kind in sorted(used)]
    axes.legend(handles=patches, ncols=7, fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.set_title(plain.title(result, 150), fontsize=9, pad=24)


def _numbers(axes: Axes, row: Row, line: int, start: float, end: float, factor: float) -> None:
    """The numbers of microbatches that are wide enough for one."""
    batches = row.microbatches
    wide = (batches.end - batches.start > 0.012 * (end - start)) & (batches.start >= start) & (batches.end <= end)
    for i in np.flatnonzero(wide).tolist():
        middle = (batches.start[i] + batches.end[i]) / 2 / factor
        ink = KINDS[int(row.kinds[row.filled(np.array([batches.start[i], batches.end[i]]))[:, 0].argmax()])][2]
        axes.text(middle, line, str(batches.number[i]), ha="center", va="center", fontsize=6, color=ink.split(" ")[0])


def _rgb(style: str) -> tuple[float, float, float]:
    found = _COLOUR.search(style)
    text = found.group(1) if found else "#ffffff"
    return (int(text[1:3], 16) / 255, int(text[3:5], 16) / 255, int(text[5:7], 16) / 255)
