"""What held a rank up: which waits for participants kept its streams from going on, and where the host was late.

A stream's *next op* is its first compute op or host synchronisation that has not started yet. Other ops (waits,
communication, memory) are what stands between; that a communication op has another one queued behind it holds nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.report.traits import Mask, Traits, traits_of
from emulator.result.tables import HELD_BY_HOST, Floats, Ints, OpTable, Timeline

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
    traits: Traits


@dataclass(frozen=True)
class Waits:
    """Intervals (seconds) in which a posted op waits for participants and holds up a next op; may overlap."""

    start: Floats
    end: Floats
    for_peer: Mask  # the posted op is a send or recv between pipeline stages


def spans_of(table: OpTable, timelines: Sequence[Timeline], traits: Traits | None = None) -> Spans:
    """Align the timelines of one rank with the rows of its op table.

    Ops without a length (waits, host synchronisations) belong in a timeline too: dependencies run through them.
    ``traits`` of the table, where they have been worked out already.
    """
    traits = traits or traits_of(table)
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
        computes=traits.computes & ran,
        communicates=traits.communicates & ran,
        synchronises=traits.synchronises & ran,
        streams=[line.op[np.argsort(line.start, kind="stable")] for line in timelines if len(line.op)],
        traits=traits,
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
        order = _order(table, spans)
        for stream in spans.streams:
            consumers = stream[consumes[stream]]
            if not len(consumers):
                continue
            first = _first_dependants(spans, order, stream, consumers)[posted]
            held = first < _NEVER
            # Before it started, the consumer was the stream's next op from the start of the consumer before it.
            became_next = np.concatenate([[0.0], spans.start[consumers]])[first[held]]
            lows.append(np.maximum(spans.start[posted[held]], became_next))
            highs.append(spans.transfer_start[posted[held]])
            rows.append(posted[held])
    low, high, row = (np.concatenate(parts) if parts else np.empty(0) for parts in (lows, highs, rows))
    some = low < high
    return Waits(low[some], high[some], spans.traits.messages[row[some].astype(np.int64)])


def host_holds(table: OpTable, spans: Spans) -> tuple[Floats, Floats]:
    """Intervals in which an op could have run but was not issued yet: from the end of its dependencies to its start."""
    able = np.zeros(len(spans.start))
    for stream in spans.streams:
        able[stream[1:]] = np.maximum.accumulate(spans.end[stream])[:-1]
    np.fmax.at(able, spans.traits.dependants, spans.end[table.deps])  # fmax: a dependency that did not run holds nobody
    late = (spans.held_by == HELD_BY_HOST) & (able < spans.start)
    return able[late], spans.start[late]


@dataclass(frozen=True)
class _Order:
    """Who had to end before whom could start: ``before[i]`` before ``after[i]``, latest ``before`` first.

    That is dependencies, and order on the streams. On ``serial`` streams every row had to wait for the one before it;
    on others run parts of a batch, at the same time, and what comes after them waits for all.
    """

    before: Ints
    after: Ints
    serial: list[bool]


def _order(table: OpTable, spans: Spans) -> _Order:
    # An op may seem to start a rounding error before the one that it follows has ended.
    able = spans.start + 1e-12 * float(np.nanmax(spans.end))
    before, after, serial = [table.deps], [spans.traits.dependants], []
    for stream in spans.streams:
        serial.append(bool((spans.end[stream[:-1]] <= able[stream[1:]]).all()))
        earlier, later = (stream[:-1], stream[1:]) if serial[-1] else _batches(stream, able, spans.end)
        before.append(earlier)
        after.append(later)
    ended, follows = np.concatenate(before), np.concatenate(after)
    ran = ~np.isnan(spans.start[ended] + spans.start[follows])
    ended, follows = ended[ran], follows[ran]
    latest_first = np.lexsort((ended, spans.start[ended]))[::-1]
    return _Order(ended[latest_first], follows[latest_first], serial)


def _batches(stream: Ints, able: Floats, end: Floats) -> tuple[Ints, Ints]:
    """Pairs of rows of one stream of which the second waited for the first."""
    pairs: list[tuple[int, int]] = []
    running: list[int] = []
    for row in stream.tolist():
        ended = [other for other in running if end[other] <= able[row]]
        if ended:
            pairs += [(other, row) for other in ended]
            running = [other for other in running if end[other] > able[row]]
        running.append(row)
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _first_dependants(spans: Spans, order: _Order, stream: Ints, consumers: Ints) -> Ints:
    """For each row the position in ``consumers`` (those of one stream, in order) of the first that is it or depends on
    it, or _NEVER.

    What depends on a row is closed under stream order, so the first is all one has to know.
    """
    first = np.full(len(spans.start), _NEVER, dtype=np.int64)
    syncs = np.flatnonzero(spans.synchronises)  # the host issues nothing until they are over
    later = np.searchsorted(np.maximum.accumulate(consumers), syncs, side="right")
    first[syncs] = np.where(later < len(consumers), later, _NEVER)
    unknown = np.ones(len(first), dtype=np.bool_)
    own = next(i for i, rows in enumerate(spans.streams) if rows is stream)
    if order.serial[own]:  # on the stream itself it is the next, and nothing that goes round can be sooner
        unknown[stream] = False
        reached = np.cumsum((spans.computes | spans.synchronises)[stream])
        first[stream] = np.where(reached < len(consumers), reached, _NEVER)
    first[consumers] = np.arange(len(consumers))
    left = unknown[order.before]
    found = first.tolist()
    for row, follower in zip(order.before[left].tolist(), order.after[left].tolist(), strict=True):
        found[row] = min(found[row], found[follower])
    return np.array(found, dtype=np.int64)
