"""Where the step of a rank went: every instant goes to one line, so the lines add up to the step.

The definitions are those of ``docs/report.md``. All spans of a rank cut its step into pieces on which nothing changes;
each piece goes to the first line that holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import NDArray

from emulator.report.holding import Mask, exposed_waits, host_holds, is_kind, spans_of
from emulator.result.schema import Floats, OpTable, Partition, Result, Timeline

LINES = (
    "compute",
    "exposed_transfer",
    "exposed_wait",
    "host",
    "idle_before",
    "idle_after",
    "idle_dependency",
)
_PIPELINE_PHASES = ("forward", "backward", "backward_input", "backward_weight", "recompute")


@dataclass(frozen=True)
class Pieces:
    """The step of one rank cut at every start and end: piece i is [edges[i], edges[i+1]) and belongs to
    ``LINES[line[i]]``. The masks say what else holds on a piece; ``waits_for_peer`` is an exposed wait (whatever line
    it went to) for a send or recv.
    """

    edges: Floats
    line: NDArray[np.int8]
    computes: Mask
    transfers: Mask
    communicates: Mask
    waits_for_peer: Mask

    def seconds(self, mask: Mask) -> float:
        """Total length of the pieces under a mask."""
        return fsum(np.diff(self.edges)[mask].tolist())


def cut(table: OpTable, timelines: Sequence[Timeline], step_seconds: float) -> Pieces:
    """Cut the step of one rank class into pieces and give each to its line."""
    spans = spans_of(table, timelines)
    busy = spans.computes | spans.communicates
    waits = exposed_waits(table, spans)
    layers = [
        _clip(spans.start[spans.computes], spans.end[spans.computes], step_seconds),
        _clip(spans.transfer_start[spans.communicates], spans.end[spans.communicates], step_seconds),
        _clip(spans.start[spans.communicates], spans.end[spans.communicates], step_seconds),
        _clip(waits.start, waits.end, step_seconds),
        _clip(waits.start[waits.for_peer], waits.end[waits.for_peer], step_seconds),
        _clip(*host_holds(table, spans), step_seconds),
    ]
    first, last = (spans.start[busy].min(), spans.end[busy].max()) if busy.any() else (step_seconds, step_seconds)
    bounds = np.clip([0.0, first, last, step_seconds], 0.0, step_seconds)
    edges = np.unique(np.concatenate([bounds, *(side for layer in layers for side in layer)]))
    computes, transfers, communicates, waiting, for_peer, held_by_host = (_covered(edges, *layer) for layer in layers)
    middle = edges[:-1]
    line = np.select(
        [computes, transfers, waiting, held_by_host, middle < first, middle >= last],
        [np.int8(i) for i in range(6)],
        np.int8(6),
    )
    return Pieces(edges, line, computes, transfers, communicates, for_peer)


def partition(table: OpTable, timelines: Sequence[Timeline], step_seconds: float) -> Partition:
    """The partition of one rank class. ``timelines`` are those of all its streams."""
    return _sum_up(cut(table, timelines, step_seconds), step_seconds)


def fill(result: Result) -> Result:
    """The result with the partition of every rank class and, if ranks send to each other, its bubble."""
    lines: list[list[Timeline]] = [[] for _ in result.ranks]
    for timeline in result.timeline:
        lines[timeline.rank_class].append(timeline)
    tables = [result.programs[ranks.program] for ranks in result.ranks]
    pieces = [cut(table, own, result.step_seconds) for table, own in zip(tables, lines, strict=True)]
    phase = pipeline_phase(result)
    for ranks, table, piece in zip(result.ranks, tables, pieces, strict=True):
        ranks.partition = _sum_up(piece, result.step_seconds)
        piped = phase is not None and _uses_peers(table)
        ranks.bubble_seconds = bubble(piece, phase) if piped and phase else None
    return result


def pipeline_phase(result: Result) -> tuple[float, float] | None:
    """First start and last end (seconds) over all ranks of pipeline ops; None if nobody sends or receives.

    Pipeline ops are sends, receives, and compute of a forward or backward phase or of a numbered microbatch, on ranks
    that send or receive.
    """
    starts, ends = [], []
    for timeline in result.timeline:
        table = result.programs[result.ranks[timeline.rank_class].program]
        if not _uses_peers(table):
            continue
        phase = np.array([value in _PIPELINE_PHASES for value in table.phase.values], dtype=np.bool_)[table.phase.codes]
        computes = is_kind(table, ("compute",)) & (phase | (table.microbatch >= 0))
        rows = (is_kind(table, ("send", "recv")) | computes)[timeline.op]
        if rows.any():
            starts.append(float(timeline.start[rows].min()))
            ends.append(float(timeline.end[rows].max()))
    return (min(starts), max(ends)) if starts else None


def bubble(pieces: Pieces, phase: tuple[float, float]) -> float:
    """Seconds of the pipeline phase in which one rank idled or waited, exposed, for a peer to send or receive."""
    line = pieces.line
    lost = (line >= LINES.index("idle_before")) | ((line == LINES.index("exposed_wait")) & pieces.waits_for_peer)
    inside = np.clip(pieces.edges, *phase)
    return fsum(np.diff(inside)[lost].tolist())


def _sum_up(pieces: Pieces, step_seconds: float) -> Partition:
    parts = [pieces.seconds(pieces.line == i) for i in range(len(LINES))]
    hidden_transfer = pieces.seconds(pieces.transfers & pieces.computes)
    transfer = pieces.seconds(pieces.transfers)
    return Partition(
        **{f"{name}_seconds": value for name, value in zip(LINES, parts, strict=True)},
        hidden_transfer_seconds=hidden_transfer,
        hidden_wait_seconds=pieces.seconds(pieces.communicates & ~pieces.transfers & pieces.computes),
        communication_seconds=pieces.seconds(pieces.communicates),
        overlap=hidden_transfer / transfer if transfer > 0 else None,
        sum_minus_step_seconds=fsum(parts) - step_seconds,
    )


def _clip(start: Floats, end: Floats, step_seconds: float) -> tuple[Floats, Floats]:
    return np.clip(start, 0.0, step_seconds), np.clip(end, 0.0, step_seconds)


def _covered(edges: Floats, start: Floats, end: Floats) -> Mask:
    """For each piece between edges: does any of the spans cover it? Ends of spans are edges."""
    count = np.zeros(len(edges), dtype=np.int64)
    np.add.at(count, np.searchsorted(edges, start), 1)
    np.add.at(count, np.searchsorted(edges, end), -1)
    return np.cumsum(count)[:-1] > 0


def _uses_peers(table: OpTable) -> bool:
    return bool(is_kind(table, ("send", "recv")).any())
