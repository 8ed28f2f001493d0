"""Who waited for whom: every op's way back in time to what made it start when it did, across ranks.

An op starts when the last thing that it waited for is over; a transfer starts when its last participant has arrived,
which leads to another rank. Followed to the start of the step this is the critical path of the op.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from emulator.report.holding import Spans, spans_of
from emulator.report.ranks import class_of_rank, peer_rank, rank_ranges
from emulator.report.traits import Mask, traits_of
from emulator.result.schema import Result
from emulator.result.tables import HELD_BY_HOST, HELD_BY_START, Ints, OpTable, Timeline

Place = tuple[int, int]  # rank class, row of its op table


class Stretch(NamedTuple):
    """A piece of a way back: row ``row`` of class ``rank_class`` did ``what`` from ``start`` to ``end`` (seconds).

    ``what`` is compute, transfer, host (its issue was awaited) or other (nothing in the result explains the time).
    """

    rank_class: int
    row: int
    what: str
    start: float
    end: float


@dataclass(frozen=True)
class RankHistory:
    """What one rank class did, as plain lists for walking. Rows that did not run have start and end nan."""

    table: OpTable
    spans: Spans
    start: list[float]
    end: list[float]
    transfer: list[float]
    holder: list[int]  # the row that each row waited for last, or HELD_BY_START or HELD_BY_HOST
    passed_on: list[int]  # the dependency with which a wait ended, else -1
    arrived_last: list[int]
    communicates: list[bool]
    receives: list[bool]
    passes: list[bool]  # waits and host synchronisations: they only hand on what they wait for
    syncs: list[int]  # rows, in order of issue
    rounding: float

    def posted_at(self, moment: float, group: int) -> list[int]:
        """Communication rows of a group (a code of the table) that were posted at a moment."""
        moments, rows = self._posted
        low, high = bisect_left(moments, moment), bisect_right(moments, moment)
        return [row for row in rows[low:high] if self.table.group.codes[row] == group]

    @cached_property
    def _posted(self) -> tuple[list[float], list[int]]:
        """Communication rows in order of posting, and when that was."""
        rows = np.flatnonzero(self.spans.communicates)
        rows = rows[np.argsort(self.spans.start[rows], kind="stable")]
        return self.spans.start[rows].tolist(), rows.tolist()

    @cached_property
    def source(self) -> list[int]:
        """What each row waited for last, seen through waits that only hand on; or as ``holder``."""
        found: list[int] = self._source.tolist()
        return found

    @cached_property
    def work_begins(self) -> list[int]:
        """For each compute row the first compute row of the work on its microbatch, as far back as that went on without
        a break and without a participant to wait for; other rows name themselves.
        """
        spans, traits, source, own = self.spans, self.spans.traits, self._source, np.arange(len(self.end))
        came_last = (spans.start >= spans.transfer_start - self.rounding) & ~np.array(self.receives, dtype=np.bool_)
        works = spans.computes | (spans.communicates & ~traits.messages & came_last)
        joined = works & (source >= 0) & works[source] & (traits.unit_codes == traits.unit_codes[source])
        # Strictly earlier: so there is no way round in a circle.
        joined &= (spans.end[source] >= spans.start - self.rounding) & (spans.start[source] < spans.start)
        through = _followed(np.where(joined & ~spans.computes, source, own))  # collectives on the way
        before = through[np.where(joined, source, own)]
        begins: list[int] = _followed(np.where(spans.computes & spans.computes[before], before, own)).tolist()
        return begins

    @cached_property
    def _source(self) -> Ints:
        passed_on = np.array(self.passed_on, dtype=np.int64)
        hands_on = np.array(self.passes, dtype=np.bool_) & (passed_on >= 0)
        seen = _followed(np.where(hands_on, passed_on, np.arange(len(passed_on))))
        holder = np.array(self.holder, dtype=np.int64)
        return np.where(holder >= 0, seen[np.maximum(holder, 0)], holder) if len(holder) else holder

    def source_of(self, row: int) -> int:
        """What a row waited for last, seen through what only hands on: the host synchronisation after which the host
        issued it, if it waited for the host. -1: nothing.
        """
        source = self.source[row]
        if source != HELD_BY_HOST:
            return source
        sync = self.synchronisation(row, self.start[row])
        return -1 if sync is None else self.seen_through(sync)

    def seen_through(self, row: int) -> int:
        """A row, or what it handed on if that is all it does."""
        for _ in self.end:  # that often at most: a file edited by hand may lead in a circle
            if not self.passes[row] or self.passed_on[row] < 0:
                break
            row = self.passed_on[row]
        return row

    def synchronisation(self, row: int, moment: float) -> int | None:
        """The host synchronisation from whose end on the host came to a row; None: it did so from the start."""
        at = bisect_left(self.syncs, row) - 1
        while at >= 0 and not self.end[self.syncs[at]] <= moment + self.rounding:
            at -= 1
        return self.syncs[at] if at >= 0 else None


@dataclass(frozen=True)
class History:
    """All rank classes of a result, for the ``shown_seconds`` of its timeline. Times closer than ``rounding`` seconds
    are the same.
    """

    ranks: list[RankHistory]
    shown_seconds: float
    rounding: float
    mesh: Mapping[str, int]
    members: list[tuple[int, int, int]]  # first and last rank of a range, and its class; sorted
    first_rank: list[int]
    most_hops: int

    def last_arriver(self, place: Place) -> Place:
        """The communication op whose posting let this one's transfer start (itself, if it came last).

        Where a receive and its send are posted at the same moment, the send: that is where the data came from.
        """
        rank_class, row = place
        rank = self.ranks[rank_class]
        moment = rank.transfer[row]
        came_last = rank.start[row] >= moment - self.rounding
        if came_last and not rank.receives[row]:
            return place
        kind = rank.table.kind[row]
        other = self._peer_class(rank_class, row) if kind in ("send", "recv") else None
        other = rank.arrived_last[row] if other is None else other
        if not 0 <= other < len(self.ranks) or (came_last and other == rank_class):
            return place
        peer = self.ranks[other]
        group = rank.table.group[row]
        values = peer.table.group.values
        rows = peer.posted_at(moment, values.index(group)) if group in values else []
        matching = [r for r in rows if self._matches(peer, r, kind, rank.end[row])]
        return (other, matching[0]) if matching else place

    def _matches(self, peer: RankHistory, row: int, kind: str, end: float) -> bool:
        partner = {"send": "recv", "recv": "send"}.get(kind, kind)
        return peer.table.kind[row] == partner and abs(peer.end[row] - end) <= self.rounding

    def _peer_class(self, rank_class: int, row: int) -> int | None:
        """The class of the peer of a send or receive; None where the result does not tell."""
        peer = self.ranks[rank_class].table.peer[row]
        rank = peer_rank(peer, self.first_rank[rank_class], self.mesh)
        return None if rank is None else class_of_rank(self.members, rank)

    def walk_back(  # noqa: PLR0912  (the one hot loop: a report walks over every op several times)
        self, place: Place, *, from_end: bool = False, whole_work: bool = False
    ) -> Iterator[Stretch]:
        """The way back from the start of an op (``from_end``: from its end) to the start of the step.

        Stretches are contiguous and the last begins at 0, so their lengths add up to where the walk began. With
        ``whole_work`` unbroken work of a rank on one microbatch, its collectives included, is one stretch: compute of
        its last compute op. Transfers of no length are listed too (who follows a microbatch has to see them).
        """
        rank_class, row = place
        rank = self.ranks[rank_class]
        t = rank.end[row] if from_end else rank.start[row]
        at_end = from_end  # else at the start of the row
        hops = 0  # without getting anywhere in time: many only if a file edited by hand leads in a circle
        while t > 0 and hops < self.most_hops:
            hops += 1
            before = t
            if not at_end:
                held = rank.holder[row]
                if held >= 0:
                    if rank.end[held] < t - self.rounding:
                        yield Stretch(rank_class, row, "other", rank.end[held], t)
                        t = rank.end[held]
                    row, at_end = held, True
                elif held == HELD_BY_HOST:
                    sync = rank.synchronisation(row, t)
                    moment = 0.0 if sync is None else min(rank.end[sync], t)
                    yield Stretch(rank_class, row, "host", moment, t)
                    if sync is None:
                        return
                    t, row, at_end = moment, sync, True
                else:
                    break
            elif rank.communicates[row]:
                moment = min(rank.transfer[row], t)
                yield Stretch(rank_class, row, "transfer", moment, t)
                t, at_end = moment, False
                rank_class, row = self.last_arriver((rank_class, row))
                rank = self.ranks[rank_class]
                if rank.start[row] < t - self.rounding:  # who came last is not in the result
                    yield Stretch(rank_class, row, "other", rank.start[row], t)
                t = min(t, rank.start[row])
            elif rank.passes[row] and rank.passed_on[row] >= 0:
                row = rank.passed_on[row]
            else:
                first = rank.work_begins[row] if whole_work else row
                if rank.start[first] < t:
                    yield Stretch(rank_class, row, "other" if rank.passes[row] else "compute", rank.start[first], t)
                t, row, at_end = min(t, rank.start[first]), first, False
            if t < before:
                hops = 0
        if t > 0:
            yield Stretch(rank_class, row, "other", 0.0, t)


def history_of(result: Result, spans: list[Spans] | None = None) -> History:
    """Prepare a result for walking; ``spans`` of each class, where they have been aligned already."""
    lines: list[list[Timeline]] = [[] for _ in result.ranks]
    for line in result.timeline:
        lines[line.rank_class].append(line)
    if spans is None:
        traits = [traits_of(program) for program in result.programs]
        spans = [
            spans_of(result.programs[r.program], own, traits[r.program])
            for own, r in zip(lines, result.ranks, strict=True)
        ]
    ranks = []
    rounding = 1e-12 * result.shown_seconds
    for own, described, aligned in zip(lines, result.ranks, spans, strict=True):
        ranks.append(_rank_history(result.programs[described.program], aligned, own, rounding))
    ranges = [(*pair, r.rank_class) for r in result.ranks for pair in rank_ranges(r.ranks)]
    first = [0] * len(result.ranks)
    for low, _, rank_class in sorted(ranges, reverse=True):
        first[rank_class] = low
    return History(
        ranks=ranks,
        shown_seconds=result.shown_seconds,
        rounding=rounding,
        mesh=dict(zip(result.trace.mesh_axes, result.trace.mesh_shape, strict=False)),
        members=sorted(ranges),
        first_rank=first,
        most_hops=2 * sum(len(rank.end) for rank in ranks) + 2,
    )


def _rank_history(table: OpTable, spans: Spans, lines: list[Timeline], rounding: float) -> RankHistory:
    arrived = np.full(len(spans.start), -1, dtype=np.int64)
    for line in lines:
        arrived[line.op] = line.arrived_last
    communicates, passes = spans.traits.communicates, spans.traits.passes
    holder, passed_on = _holders(table, spans, communicates, passes, rounding)
    return RankHistory(
        table=table,
        spans=spans,
        start=spans.start.tolist(),
        end=spans.end.tolist(),
        transfer=spans.transfer_start.tolist(),
        holder=holder.tolist(),
        passed_on=passed_on.tolist(),
        arrived_last=arrived.tolist(),
        communicates=communicates.tolist(),
        receives=spans.traits.receives,
        passes=passes.tolist(),
        syncs=np.flatnonzero(spans.synchronises).tolist(),
        rounding=rounding,
    )


def _followed(pointers: Ints) -> Ints:
    """Where each row gets that follows pointers to their end (rows that point at themselves)."""
    for _ in range(len(pointers).bit_length()):
        further = pointers[pointers]
        if np.array_equal(further, pointers):
            break
        pointers = further
    return pointers


def _holders(table: OpTable, spans: Spans, communicates: Mask, passes: Mask, rounding: float) -> tuple[Ints, Ints]:
    """What each row waited for last, and with which dependency each wait ended (-1: none).

    Of what ended together, that which leads to another rank: there the data came from.
    """
    rows = len(spans.end)
    held = np.where((spans.held_by >= rows) | (spans.held_by < HELD_BY_HOST), HELD_BY_START, spans.held_by)
    held_end = np.where(held >= 0, spans.end[np.maximum(held, 0)] if rows else 0.0, np.inf)
    own = spans.traits.dependants
    dep_end, leads = spans.end[table.deps], communicates[table.deps] | passes[table.deps]
    holder = held.copy()
    better = leads & (dep_end >= held_end[own] - rounding) & ~communicates[np.maximum(held[own], 0)]
    np.put(holder, own[better][::-1], table.deps[better][::-1])  # the first listed wins
    passed_on = np.full(rows, -1, dtype=np.int64)
    last = np.flatnonzero(passes[own] & (dep_end >= spans.end[own] - rounding))
    last = last[np.lexsort((dep_end[last], communicates[table.deps[last]]))]  # communication, then the latest, wins
    np.put(passed_on, own[last], table.deps[last])
    return holder, passed_on
