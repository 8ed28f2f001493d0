"""The timeline as text: rows are rank classes by streams, columns are time, a letter and colour say what ran.

Meant for logs, pipes and documents; nothing is lost without colour.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from emulator.errors import InputError
from emulator.report import figures
from emulator.report.palette import COMMUNICATION, COMPUTE, HOST_SYNC, IDLE, WAIT, legend
from emulator.result.schema import Floats, Ints, OpTable, RankClass, Result, Timeline
from emulator.view.axis import axis

CLASSES_SHOWN = 16
MIN_WIDTH = 30
_SHOWN_FROM = 0.05  # of a cell: less than that of anything leaves it empty
_BUSY = len("100 % ")

# Every kind that a cell can show; a kind is named by its place here.
_KINDS = [*COMPUTE.values(), *COMMUNICATION.values(), WAIT, HOST_SYNC]
_COMPUTE = {phase: i for i, phase in enumerate(COMPUTE)}
_COMMUNICATION = {name: len(COMPUTE) + i for i, name in enumerate(COMMUNICATION)}
_WAIT, _HOST_SYNC = len(_KINDS) - 2, len(_KINDS) - 1


@dataclass(frozen=True)
class _Marks:
    """What to draw in one row: spans (seconds), each of a kind."""

    start: Floats
    end: Floats
    kind: Ints


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
    end = result.step_seconds if end is None else end
    _check(result, width, start, end, classes)
    end = min(end, result.step_seconds)
    chosen = list(range(min(len(result.ranks), CLASSES_SHOWN))) if classes is None else list(dict.fromkeys(classes))
    lines: dict[int, list[Timeline]] = {i: [] for i in chosen}
    for line in result.timeline:
        if line.rank_class in lines:
            lines[line.rank_class].append(line)
    label = _label_width([line.stream for own in lines.values() for line in own], width)
    cells = width - label - _BUSY
    edges = np.linspace(start, end, cells + 1)
    names, ruler = axis(start, end, cells)

    text = Text(no_wrap=True)
    text.append(_title(result, width) + "\n", "bold")
    text.append(" " * label + names + "\n")
    text.append(" " * label + ruler + "  busy\n")
    used: set[int] = set()
    for i in chosen:
        text.append(_clipped(_class_title(result.ranks[i]), width) + "\n", "bold")
        table = result.programs[result.ranks[i].program]
        for line in sorted(lines[i], key=lambda line: (-_compute_seconds(table, line), line.stream)):
            text.append(f"  {_clipped(line.stream, label - 3):<{label - 2}}")
            used |= _append_row(text, _marks(table, line), edges)
    text.append_text(_foot(result, len(chosen), classes is None, used, (end - start) / cells, width))
    return text


def _check(result: Result, width: int, start: float, end: float, classes: Sequence[int] | None) -> None:
    if width < MIN_WIDTH:
        raise InputError(f"{width} columns are too few for a timeline: {MIN_WIDTH} are needed", source="--width")
    if not result.step_seconds > 0:
        raise InputError("there is nothing to show: the step takes no time")
    if not 0 <= start < end:
        raise InputError(f"from {start:g} s to {end:g} s is no window of time")
    if start >= result.step_seconds:
        raise InputError(
            f"the window starts at {start:g} s, but the step ends at {figures.seconds(result.step_seconds)}"
        )
    for i in classes or ():
        if not 0 <= i < len(result.ranks):
            known = figures.several(len(result.ranks), "class")
            raise InputError(f"no rank class {i}: the result has {known}, numbered from 0", source="--class")


def _title(result: Result, width: int) -> str:
    names = " on ".join(name for name in (result.trace.model or result.trace.file, result.topology.name) if name)
    step = f"step {figures.seconds(result.step_seconds)}, {figures.several(result.world_size, 'rank')}"
    return _clipped(f"{names}: {step}" if names else step, width)


def _class_title(ranks: RankClass) -> str:
    number = f"class {ranks.rank_class}: "
    return number + (f"rank {ranks.ranks}" if ranks.count == 1 else f"{ranks.count} ranks ({ranks.ranks})")


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 2)] + ".."


def _label_width(streams: Sequence[str], width: int) -> int:
    return min(max([8, *map(len, streams)]) + 3, width // 3)


def _compute_seconds(table: OpTable, line: Timeline) -> float:
    """How long a stream computes: the busiest comes first."""
    computes = np.array([kind == "compute" for kind in table.kind.values])[table.kind.codes[line.op]]
    return float((line.end - line.start)[computes].sum())


def _marks(table: OpTable, line: Timeline) -> _Marks:
    """Spans of one stream by kind; a communication op is a wait until its last participant has arrived."""
    compute = np.array([_COMPUTE.get(phase, _COMPUTE[""]) for phase in table.phase.values], dtype=np.int64)
    collective = np.array([_COMMUNICATION.get(name, _COMMUNICATION[""]) for name in table.collective.values], np.int64)
    kinds = np.array(table.kind.values)[table.kind.codes[line.op]]
    shown = np.full(len(line.op), -1, dtype=np.int64)
    shown = np.where(kinds == "compute", compute[table.phase.codes[line.op]], shown)
    shown = np.where(kinds == "collective", collective[table.collective.codes[line.op]], shown)
    shown = np.where((kinds == "send") | (kinds == "recv"), _COMMUNICATION["peer"], shown)
    shown = np.where(kinds == "wait", _WAIT, shown)
    shown = np.where(kinds == "host_sync", _HOST_SYNC, shown)
    arrived = np.where(np.isnan(line.transfer_start), line.start, line.transfer_start)
    waited = arrived > line.start
    return _Marks(
        start=np.concatenate([arrived[shown >= 0], line.start[waited]]),
        end=np.concatenate([line.end[shown >= 0], arrived[waited]]),
        kind=np.concatenate([shown[shown >= 0], np.full(int(waited.sum()), _WAIT, dtype=np.int64)]),
    )


def _append_row(text: Text, marks: _Marks, edges: Floats) -> set[int]:
    """Append one row of cells, each with the kind that fills most of it, and the busy share; return the kinds shown."""
    kinds = np.unique(marks.kind)
    cell = edges[1] - edges[0]
    filled = np.array([_filled(marks.start[marks.kind == k], marks.end[marks.kind == k], edges) for k in kinds])
    if not len(kinds):
        filled = np.zeros((1, len(edges) - 1))
    busy = np.minimum(filled.sum(axis=0), cell)
    best = np.where(busy >= _SHOWN_FROM * cell, filled.argmax(axis=0), -1).tolist()
    for i in _runs(best):
        value, length = best[i[0]], i[1] - i[0]
        letter, _, style = IDLE if value < 0 else _KINDS[kinds[value]]
        text.append(letter * length, style)
    share = f"{100 * busy.sum() / (edges[-1] - edges[0]):.0f} %"
    text.append(f"{share:>{_BUSY}}\n")
    return {int(kinds[value]) for value in set(best) if value >= 0}


def _filled(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Seconds of each cell that spans (which may overlap) cover: differences of the time covered before each edge."""

    def before(times: Floats) -> Floats:
        times = np.sort(times)
        total = np.concatenate([[0.0], np.cumsum(times)])
        number = np.searchsorted(times, edges)
        covered: Floats = number * edges - total[number]
        return covered

    cells: Floats = np.diff(before(start) - before(end))
    return cells


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each run of equal values."""
    borders = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    return list(itertools.pairwise(borders))


def _foot(result: Result, shown: int, all_wanted: bool, used: set[int], cell: float, width: int) -> Text:
    entries = [_KINDS[kind] for kind in sorted(used)]
    text = legend([*entries, IDLE], width)
    for line in (
        f"A cell is {figures.seconds(cell)} and shows what ran longest in it; idle: under {_SHOWN_FROM:.0%} of it.",
        "busy: share of the time shown in which the stream runs or waits for participants.",
        f"{len(result.ranks) - shown} more classes: --class N" if all_wanted and shown < len(result.ranks) else "",
    ):
        if line:
            text.append("\n" + textwrap.fill(line, width))
    return text
