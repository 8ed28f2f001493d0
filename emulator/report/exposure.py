"""Whose fault exposed time is: every exposed instant goes to a communication op, every computing one to a phase.

An exposed instant goes to the op that the blocked stream needs last: walking back on the rank from the compute op that
ends the gap, the op met at that instant. Where that is none in the right state, ops in that state share it equally.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.report.history import History, RankHistory
from emulator.report.pieces import Pieces, covered
from emulator.report.traits import Traits, traits_of
from emulator.result.schema import ExposedKind
from emulator.result.tables import Floats, Ints, OpTable


@dataclass(frozen=True)
class Exposure:
    """Exposed seconds of each row of an op table; together they are the two exposed lines of the partition."""

    transfer: Floats
    wait: Floats


def expose(history: History, rank_class: int, pieces: Pieces) -> Exposure:
    """Give the pieces of both exposed lines of one rank class to communication ops."""
    rank = history.ranks[rank_class]
    exposed = np.flatnonzero(pieces.on("exposed_transfer") | pieces.on("exposed_wait"))[::-1]  # on the way back
    if not len(exposed):
        return Exposure(np.zeros(len(rank.start)), np.zeros(len(rank.start)))
    middles = (pieces.edges[exposed] + pieces.edges[exposed + 1]) / 2
    transfers = pieces.on("exposed_transfer")[exposed]
    rows = np.array(_met(rank, pieces.edges[exposed + 1], middles.tolist()), dtype=np.int64)
    transfer_starts, ends = rank.spans.transfer_start[rows], rank.spans.end[rows]
    blamed = (rows >= 0) & rank.spans.communicates[rows] & (middles < np.where(transfers, ends, transfer_starts))
    blamed &= ~transfers | (transfer_starts <= middles)
    lengths = pieces.lengths[exposed]
    found = [np.zeros(len(rank.start)), np.zeros(len(rank.start))]
    for own, chosen in zip(found, (blamed & transfers, blamed & ~transfers), strict=True):
        np.add.at(own, rows[chosen], lengths[chosen])
    for piece in np.flatnonzero(~blamed).tolist():
        sharing = _in_state(rank, bool(transfers[piece]), float(middles[piece]))
        found[0 if transfers[piece] else 1][sharing] += lengths[piece] / max(len(sharing), 1)
    return Exposure(*found)


def by_kind(table: OpTable, exposure: Exposure, traits: Traits | None = None) -> list[ExposedKind]:
    """Exposed seconds by kind of communication, the costliest first; kinds add up to the lines.

    ``traits`` of the table, where they have been worked out already.
    """
    traits = traits or traits_of(table)
    cost = [
        np.bincount(traits.kind_codes, seconds, len(traits.kinds)) for seconds in (exposure.transfer, exposure.wait)
    ]
    found = [ExposedKind(kind, float(cost[0][i]), float(cost[1][i])) for i, kind in enumerate(traits.kinds)]
    found = [entry for entry in found if entry.transfer_seconds + entry.wait_seconds > 0]
    return sorted(found, key=lambda entry: (-entry.transfer_seconds - entry.wait_seconds, entry.kind))


def by_phase(history: History, rank_class: int, pieces: Pieces, seconds: Floats) -> dict[str, float]:
    """``seconds`` of each piece of the compute line by phase; phases that compute at once share them equally."""
    rank = history.ranks[rank_class]
    spans, table = rank.spans, rank.table
    computes = spans.computes
    end = np.minimum(spans.end, history.shown_seconds)
    masks = {}
    for code, phase in enumerate(table.phase.values):
        rows = computes & (table.phase.codes == code)
        if rows.any():
            masks[phase] = covered(pieces.edges, spans.start[rows], end[rows])
    sharing = np.maximum(sum((mask.astype(np.int64) for mask in masks.values()), np.zeros(len(pieces.line))), 1)
    shares = seconds / sharing
    return {phase: float(shares[mask].sum()) for phase, mask in masks.items()}


def _met(rank: RankHistory, ends: Floats, moments: list[float]) -> list[int]:
    """For each moment, latest first, the row met there on the way back on the rank; -1 where that is none.

    The way begins at the first compute op that starts at the end of the moment's piece or later (after the last: at the
    last end of any op).
    """
    ran = np.flatnonzero(~np.isnan(rank.spans.end))
    if not len(ran):
        return [-1] * len(moments)
    last = rank.seen_through(int(ran[np.argmax(rank.spans.end[ran])]))
    computing = np.flatnonzero(rank.spans.computes)
    computing = computing[np.argsort(rank.spans.start[computing], kind="stable")]
    places = np.searchsorted(rank.spans.start[computing], ends).tolist()
    consumers = computing.tolist()
    start, end, most = rank.start, rank.end, len(rank.end)
    found: list[int] = []
    before, row, hops = -1, -1, 0
    for place, moment in zip(places, moments, strict=True):
        if place != before:
            before, hops = place, 0
            row = rank.source_of(consumers[place]) if place < len(consumers) else last
        while row >= 0 and start[row] > moment and hops < most:
            row, hops = rank.source_of(row), hops + 1
        found.append(row if row >= 0 and start[row] <= moment < end[row] else -1)
    return found


def _in_state(rank: RankHistory, transfers: bool, moment: float) -> Ints:
    """Communication ops that transfer, or else wait for participants, at a moment."""
    spans = rank.spans
    low, high = (spans.transfer_start, spans.end) if transfers else (spans.start, spans.transfer_start)
    return np.flatnonzero(spans.communicates & (low <= moment) & (moment < high))
