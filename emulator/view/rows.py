"""Rows of a timeline, prepared so that drawing any window takes no longer than its cells: the level of detail is exact.

Each row keeps, by kind of work, running sums of its starts and ends in order of time. How long a kind ran in a cell is
then a difference of two look-ups at the edges of the cell, however many spans lie in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.report.palette import COMMUNICATION, COMPUTE, HOST_SYNC, WAIT
from emulator.result.tables import Floats, Ints, OpTable, Timeline

SHOWN_FROM = 0.05  # of a cell: less than that of anything leaves it empty

# Every kind that a cell can show: letter, meaning, style. A kind is named by its place here.
KINDS = [*COMPUTE.values(), *COMMUNICATION.values(), WAIT, HOST_SYNC]
_COMPUTE = {phase: i for i, phase in enumerate(COMPUTE)}
_COMMUNICATION = {name: len(COMPUTE) + i for i, name in enumerate(COMMUNICATION)}
_WAIT, _HOST_SYNC = len(KINDS) - 2, len(KINDS) - 1


@dataclass(frozen=True)
class Covered:
    """Spans as running sums: how long they cover any window, without looking at the spans again.

    ``starts`` and ``ends`` are sorted (each by itself), the totals have one entry more than they.
    """

    starts: Floats
    ends: Floats
    start_totals: Floats
    end_totals: Floats

    @staticmethod
    def of(start: Floats, end: Floats) -> Covered:
        """Prepare spans, which may overlap."""
        starts, ends = np.sort(start), np.sort(end)
        return Covered(starts, ends, *(np.concatenate([[0.0], np.cumsum(times)]) for times in (starts, ends)))

    def seconds(self, edges: Floats) -> Floats:
        """Seconds that spans cover of each cell between edges; where spans overlap each counts."""
        begun = np.searchsorted(self.starts, edges)
        over = np.searchsorted(self.ends, edges)
        total = (begun - over) * edges - self.start_totals[begun] + self.end_totals[over]
        return np.asarray(np.diff(total), dtype=np.float64)


@dataclass(frozen=True)
class Microbatches:
    """Stretches of a row's compute on one microbatch in one phase, in order of time."""

    start: Floats
    end: Floats
    number: Ints


@dataclass(frozen=True)
class Row:
    """One stream of one rank class. ``op``, ``start`` and ``end`` are those of its timeline, in order of start;
    ``long`` are the positions of spans that take time.
    """

    rank_class: int
    stream: str
    op: Ints
    start: Floats
    end: Floats
    long: Ints
    kinds: Ints
    layers: tuple[Covered, ...]
    microbatches: Microbatches
    compute_seconds: float

    def filled(self, edges: Floats) -> Floats:
        """Seconds of each cell by kind, shape (kinds, cells), in the order of ``kinds``."""
        if not self.layers:
            return np.zeros((1, len(edges) - 1))
        return np.array([layer.seconds(edges) for layer in self.layers])


@dataclass(frozen=True)
class Drawn:
    """A row as text: a letter and a kind (-1: idle) for each cell, and the share of the window in which it is busy."""

    letters: str
    kinds: list[int]
    busy: float


def prepare(table: OpTable, line: Timeline) -> Row:
    """Prepare one stream for drawing. A communication op is a wait until its last participant has arrived."""
    kind, start, end = _marks(table, line)
    kinds = np.unique(kind)
    computes = np.array([value == "compute" for value in table.kind.values], dtype=np.bool_)[table.kind.codes[line.op]]
    return Row(
        rank_class=line.rank_class,
        stream=line.stream,
        op=line.op,
        start=line.start,
        end=line.end,
        long=np.flatnonzero(line.end > line.start),
        kinds=kinds,
        layers=tuple(Covered.of(start[kind == k], end[kind == k]) for k in kinds),
        microbatches=_microbatches(table, line, computes),
        compute_seconds=float((line.end - line.start)[computes].sum()),
    )


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows of one class as they are shown: the stream that computes most comes first."""
    return sorted(rows, key=lambda row: (-row.compute_seconds, row.stream))


def draw(row: Row, edges: Floats, idle: str = ".") -> Drawn:
    """Draw a row: each cell shows what ran longest in it; microbatches that are wide enough carry their number."""
    cell = edges[1] - edges[0]
    filled = row.filled(edges)
    busy = np.minimum(filled.sum(axis=0), cell)
    best = np.where(busy >= SHOWN_FROM * cell, filled.argmax(axis=0), -1)
    kinds = [int(row.kinds[value]) if value >= 0 else -1 for value in best.tolist()]
    letters = [KINDS[kind][0] if kind >= 0 else idle for kind in kinds]
    _number(letters, kinds, row.microbatches, edges)
    return Drawn("".join(letters), kinds, float(busy.sum() / (edges[-1] - edges[0])))


def _number(letters: list[str], kinds: list[int], microbatches: Microbatches, edges: Floats) -> None:
    """Write the number of each microbatch behind its first letter, where the cells for it show compute."""
    cell = edges[1] - edges[0]
    low, high = np.searchsorted(microbatches.end, edges[0], "right"), np.searchsorted(microbatches.start, edges[-1])
    wide = np.flatnonzero(microbatches.end[low:high] - microbatches.start[low:high] >= 2 * cell) + low
    for i in wide.tolist():
        first = max(0, int((microbatches.start[i] - edges[0]) / cell + 0.5))
        last = min(len(letters), int((microbatches.end[i] - edges[0]) / cell + 0.5))
        text = str(microbatches.number[i])
        cells = range(first + 1, first + 1 + len(text))
        if cells.stop <= last and all(0 <= kinds[c] < len(COMPUTE) for c in range(first, cells.stop)):
            letters[cells.start : cells.stop] = text


def _marks(table: OpTable, line: Timeline) -> tuple[Ints, Floats, Floats]:
    """What to draw of a stream: kind, start and end of every mark."""
    compute = np.array([_COMPUTE.get(phase, _COMPUTE[""]) for phase in table.phase.values], dtype=np.int64)
    collective = np.array([_COMMUNICATION.get(name, _COMMUNICATION[""]) for name in table.collective.values], np.int64)
    codes = table.kind.codes[line.op]
    shown = np.full(len(line.op), -1, dtype=np.int64)
    for code, kind in enumerate(table.kind.values):
        own = codes == code
        if kind == "compute":
            shown[own] = compute[table.phase.codes[line.op[own]]]
        elif kind == "collective":
            shown[own] = collective[table.collective.codes[line.op[own]]]
        else:
            shown[own] = {
                "send": _COMMUNICATION["peer"], "recv": _COMMUNICATION["peer"], "wait": _WAIT, "host_sync": _HOST_SYNC,
            }.get(kind, -1)  # fmt: skip
    arrived = np.where(np.isnan(line.transfer_start), line.start, line.transfer_start)
    waited = arrived > line.start
    return (
        np.concatenate([shown[shown >= 0], np.full(int(waited.sum()), _WAIT, dtype=np.int64)]),
        np.concatenate([arrived[shown >= 0], line.start[waited]]),
        np.concatenate([line.end[shown >= 0], arrived[waited]]),
    )


def _microbatches(table: OpTable, line: Timeline, computes: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Microbatches:
    """Merge compute ops that follow each other with the same microbatch and phase."""
    number, phase = table.microbatch[line.op[computes]], table.phase.codes[line.op[computes]]
    start, end = line.start[computes], line.end[computes]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(number) != 0) | (np.diff(phase) != 0)])[: len(number)])
    last = np.concatenate([first[1:] - 1, [len(number) - 1]])[: len(first)].astype(np.int64)
    known = number[first] >= 0
    return Microbatches(start[first][known], end[last][known], number[first][known])
