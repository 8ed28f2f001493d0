"""What held a rank up: which waits for participants kept its streams from going on, and where the host was late.

A stream's *next op* is its first compute op or host synchronisation that has not started yet. Other ops (waits,
communication, memory) are what stands between; that a communication op has another one queued behind it holds nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.report.kinds import pipeline_messages
from emulator.result.schema import HELD_BY_HOST, Floats, Ints, OpTable, Timeline

Mask = NDArray[np.bool_]

COMMUNICATION = ("collective", "send", "recv")
_NEVER = 1 << 62  # position of an op that does not exist


@dataclass(frozen=True)
class Spans:
    """When the ops of one rank ran, aligned with the rows of its op table (seconds; nan where a row did not run).

    ``streams`` lists the rows of each stream in order of start. A communication op without participants has its
    transfer all the way.
    """

    start: Floats
    end: Floats
    transfer_start: Floats
    held_by: Ints
    computes: Mask
    communicates: Mask
    synchronises: Mask
    streams: list[Ints]


@dataclass(frozen=True)
class Waits:
    """Intervals (seconds) in which a posted op waits for participants and holds up a next op; may overlap."""

    start: Floats
    end: Floats
    for_peer: Mask  # the posted op is a send or recv between pipeline stages


def is_kind(table: OpTable, kinds: Sequence[str]) -> Mask:
    """Rows of one of the kinds."""
    return np.array([kind in kinds for kind in table.kind.values], dtype=np.bool_)[table.kind.codes]


def spans_of(table: OpTable, timelines: Sequence[Timeline]) -> Spans:
    """Align the timelines of one rank with the rows of its op table.

    Ops without a length (waits, host synchronisations) belong in a timeline too: dependencies run through them.
    """
    rows = len(table.kind.codes)
    start, end, transfer_start = (np.full(rows, np.nan) for _ in range(3))
    held_by = np.full(rows, HELD_BY_HOST - 1, dtype=np.int64)
    for line in timelines:
        start[line.op], end[line.op] = line.start, line.end
        transfer_start[line.op] = np.where(np.isnan(line.transfer_start), line.start, line.transfer_start)
        held_by[line.op] = line.held_by
    ran = ~np.isnan(start)
    return Spans(
        start=start,
        end=end,
        transfer_start=np.clip(transfer_start, start, end),
        held_by=held_by,
        computes=is_kind(table, ("compute",)) & ran,
        communicates=is_kind(table, COMMUNICATION) & ran,
        synchronises=is_kind(table, ("host_sync",)) & ran,
        streams=[line.op[np.argsort(line.start, kind="stable")] for line in timelines if len(line.op)],
    )


def exposed_waits(table: OpTable, spans: Spans) -> Waits:
    """Waits of posted ops on which some stream's next op depends, directly or through other ops not finished yet.

    Once no stream has a next op left, the end of the step counts as one that depends on everything.
    """
    consumes = spans.computes | spans.synchronises
    posted = np.flatnonzero(spans.communicates & (spans.transfer_start > spans.start))
    lows, highs, rows = [], [], []
    if len(posted):
        last_start = float(spans.start[consumes].max()) if consumes.any() else 0.0
        lows.append(np.maximum(spans.start[posted], last_start))
        highs.append(spans.transfer_start[posted])
        rows.append(posted)
        before = _predecessors(table, spans)
        for stream in spans.streams:
            consumers = stream[consumes[stream]]
            if not len(consumers):
                continue
            first = np.array(_first_dependants(spans, before, consumers), dtype=np.int64)[posted]
            held = first < _NEVER
            # Before it started, the consumer was the stream's next op from the start of the consumer before it.
            became_next = np.concatenate([[0.0], spans.start[consumers]])[first[held]]
            lows.append(np.maximum(spans.start[posted[held]], became_next))
            highs.append(spans.transfer_start[posted[held]])
            rows.append(posted[held])
    low, high, row = (np.concatenate(parts) if parts else np.empty(0) for parts in (lows, highs, rows))
    some = low < high
    return Waits(low[some], high[some], pipeline_messages(table)[row[some].astype(np.int64)])


def host_holds(table: OpTable, spans: Spans) -> tuple[Floats, Floats]:
    """Intervals in which an op could have run but was not issued yet: from the end of its dependencies to its start."""
    able = np.zeros(len(spans.start))
    for stream in spans.streams:
        able[stream[1:]] = np.maximum.accumulate(spans.end[stream])[:-1]
    dependants = np.repeat(np.arange(len(able)), np.diff(table.deps_ptr))
    np.fmax.at(able, dependants, spans.end[table.deps])  # fmax: a dependency that did not run holds nobody
    late = (spans.held_by == HELD_BY_HOST) & (able < spans.start)
    return able[late], spans.start[late]


def _predecessors(table: OpTable, spans: Spans) -> list[list[int]]:
    """For each row the rows that had to end before it could start: dependencies and those before it on its stream.

    Parts of a batch share a stream and run at the same time; what comes after them waits for all.
    """
    pointers, deps = table.deps_ptr.tolist(), table.deps.tolist()
    before = [deps[pointers[row] : pointers[row + 1]] for row in range(len(pointers) - 1)]
    # An op may seem to start a rounding error before the one that it follows has ended.
    rounding = 1e-12 * float(np.nanmax(spans.end))
    start, end = (spans.start + rounding).tolist(), spans.end.tolist()
    for stream in spans.streams:
        running: list[int] = []
        for row in stream.tolist():
            ended = [other for other in running if end[other] <= start[row]]
            if ended:
                before[row].extend(ended)
                running = [other for other in running if end[other] > start[row]]
            running.append(row)
    return before


def _first_dependants(spans: Spans, before: list[list[int]], consumers: Ints) -> list[int]:
    """For each row the position in ``consumers`` (one stream, in order) of the first that depends on it, or _NEVER.

    What depends on a row is closed under stream order, so the first is all one has to know.
    """
    rows = len(before)
    position = [_NEVER] * rows
    for i, row in enumerate(consumers.tolist()):
        position[row] = i
    first = [_NEVER] * rows
    for row in np.flatnonzero(spans.synchronises).tolist():  # the host issues nothing until it is over
        later = np.flatnonzero(consumers > row)
        first[row] = int(later[0]) if len(later) else _NEVER
    order = np.lexsort((np.arange(rows), spans.start))  # rows that did not run (nan) come last
    for row in reversed(order.tolist()):
        reached = min(position[row], first[row])
        if reached < _NEVER:
            for other in before[row]:
                first[other] = min(first[other], reached)
    return first
