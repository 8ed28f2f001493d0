"""The timeline as text: rows are rank classes by streams, columns are time, a letter and colour say what ran.

Meant for logs, pipes and documents; nothing is lost without colour.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from emulator.errors import InputError
from emulator.report import figures
from emulator.report.palette import IDLE, legend
from emulator.result.schema import RankClass, Result
from emulator.result.tables import Floats
from emulator.view.axis import axis
from emulator.view.rows import KINDS, SHOWN_FROM, Row, draw, in_order, prepare

CLASSES_SHOWN = 16
MIN_WIDTH = 30
_BUSY = len("100 % ")


def render(
    result: Result,
    *,
    width: int,
    start: float = 0.0,
    end: float | None = None,
    classes: Sequence[int] | None = None,
) -> Text:
    """The timeline from ``start`` to ``end`` (seconds; else of the whole step), no line longer than ``width``.

    ``classes`` picks rank classes by number (the first 16 if not said). Raises InputError for a window that is empty
    or outside the step, an unknown class, or a width under 30 columns.
    """
    if width < MIN_WIDTH:
        raise InputError(f"{width} columns are too few for a timeline: {MIN_WIDTH} are needed", source="--width")
    end = check_window(result, start, end, classes)
    chosen = chosen_classes(result, classes)
    rows: dict[int, list[Row]] = {i: [] for i in chosen}
    for line in result.timeline:
        if line.rank_class in rows:
            table = result.programs[result.ranks[line.rank_class].program]
            rows[line.rank_class].append(prepare(table, line))
    label = label_width([row.stream for own in rows.values() for row in own], width)
    cells = width - label - _BUSY
    edges = np.linspace(start, end, cells + 1)
    names, ruler = axis(start, end, cells)

    text = Text(no_wrap=True)
    text.append(title(result, width) + "\n", "bold")
    text.append(" " * label + names + "\n")
    text.append(" " * label + ruler + "  busy\n")
    used: set[int] = set()
    for i in chosen:
        text.append(clipped(class_title(result.ranks[i]), width) + "\n", "bold")
        for row in in_order(rows[i]):
            text.append(f"  {clipped(row.stream, label - 3):<{label - 2}}")
            used |= _append_row(text, row, edges)
    numbered = any(len(row.microbatches.number) for own in rows.values() for row in own)
    text.append_text(_foot(result, len(chosen), classes is None, used, (end - start) / cells, width, numbered))
    return text


def chosen_classes(result: Result, classes: Sequence[int] | None) -> list[int]:
    """The rank classes asked for, each once; by default the first ones."""
    return list(range(min(len(result.ranks), CLASSES_SHOWN))) if classes is None else list(dict.fromkeys(classes))


def check_window(result: Result, start: float, end: float | None, classes: Sequence[int] | None) -> float:
    """The end of a window of time (None: the end of what is shown), at most that of what is shown.

    Raises InputError for a window that is empty or outside the step, or an unknown class.
    """
    end = result.shown_seconds if end is None else end
    if not result.step_seconds > 0:
        raise InputError("there is nothing to show: the step takes no time")
    if not 0 <= start < end:
        raise InputError(f"from {start:g} s to {end:g} s is no window of time", source="--from, --to")
    if start >= result.shown_seconds:
        raise InputError(
            f"the window starts at {start:g} s, but the timeline ends at {figures.seconds(result.shown_seconds)}",
            source="--from",
        )
    for i in classes or ():
        if not 0 <= i < len(result.ranks):
            known = figures.several(len(result.ranks), "class")
            raise InputError(f"no rank class {i}: the result has {known}, numbered from 0", source="--class")
    return min(end, result.shown_seconds)


def title(result: Result, width: int) -> str:
    """What the timeline shows, in one line."""
    names = " on ".join(name for name in (result.trace.model or result.trace.file, result.topology.name) if name)
    step = f"step {figures.seconds(result.step_seconds)}, {figures.several(result.world_size, 'rank')}"
    return clipped(f"{names}: {step}" if names else step, width)


def class_title(ranks: RankClass) -> str:
    """The number of a class and its ranks."""
    number = f"class {ranks.rank_class}: "
    return number + (f"rank {ranks.ranks}" if ranks.count == 1 else f"{ranks.count:,} ranks ({ranks.ranks})")


def clipped(text: str, width: int) -> str:
    """A text of at most ``width`` characters, with dots where it is cut."""
    return text if len(text) <= width else text[: max(0, width - 2)] + ".."


def label_width(streams: Sequence[str], width: int) -> int:
    """Columns that the names of streams may take."""
    return min(max([8, *map(len, streams)]) + 3, width // 3)


def _append_row(text: Text, row: Row, edges: Floats) -> set[int]:
    """Append one row of cells, each with the kind that fills most of it, and the busy share; return the kinds shown."""
    drawn = draw(row, edges, IDLE[0])
    for first, end in runs(drawn.kinds):
        style = IDLE[2] if drawn.kinds[first] < 0 else KINDS[drawn.kinds[first]][2]
        text.append(drawn.letters[first:end], style)
    share = f"{100 * drawn.busy:.0f} %"
    text.append(f"{share:>{_BUSY}}\n")
    return {kind for kind in drawn.kinds if kind >= 0}


def omissions(result: Result) -> list[str]:
    """What the timeline leaves out of the step, a sentence each."""
    return [
        f"At {figures.seconds(jump.at_seconds)}: {jump.count} periods of {figures.seconds(jump.period_seconds)} "
        "like the one before are left out."
        for jump in result.omitted
    ]


def runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each run of equal values."""
    if not values:
        return []
    borders = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    return list(itertools.pairwise(borders))


def _foot(
    result: Result, shown: int, all_wanted: bool, used: set[int], cell: float, width: int, numbered: bool
) -> Text:
    entries = [KINDS[kind] for kind in sorted(used)]
    text = legend([*entries, IDLE], width)
    for line in (
        f"A cell is {figures.seconds(cell)} and shows what ran longest in it; idle: under {SHOWN_FROM:.0%} of it.",
        "A number behind a letter is the microbatch." if numbered else "",
        "busy: share of the time shown in which the stream runs or waits for participants.",
        *omissions(result),
        f"{len(result.ranks) - shown} more classes: --class N" if all_wanted and shown < len(result.ranks) else "",
    ):
        if line:
            text.append("\n" + textwrap.fill(line, width))
    return text
