"""Whose fault exposed time is: every exposed instant goes to a communication op, every computing one to a phase.

An exposed instant goes to the op that the blocked stream needs last: walking back on the rank from the compute op that
ends the gap, the op met at that instant. Where that is none in the right state, ops in that state share it equally.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from emulator.report.history import History, RankHistory, Stretch
from emulator.report.kinds import kind_of_group
from emulator.report.pieces import Pieces, covered
from emulator.result.schema import ExposedKind, Floats, Ints, OpTable


@dataclass(frozen=True)
class Exposure:
    """Exposed seconds of each row of an op table; together they are the two exposed lines of the partition."""

    transfer: Floats
    wait: Floats


def expose(history: History, rank_class: int, pieces: Pieces) -> Exposure:
    """Give the pieces of both exposed lines of one rank class to communication ops."""
    rank = history.ranks[rank_class]
    found = {"transfer": np.zeros(len(rank.start)), "wait": np.zeros(len(rank.start))}
    exposed = np.flatnonzero(pieces.on("exposed_transfer") | pieces.on("exposed_wait"))
    lengths = pieces.lengths
    transfers = pieces.on("exposed_transfer")
    for consumer, chosen in _gaps(rank, pieces, exposed):
        way = _way_back(history, rank_class, consumer, float(pieces.edges[chosen[0]]))
        at = len(way) - 1
        for piece in chosen:
            middle = (pieces.edges[piece] + pieces.edges[piece + 1]) / 2
            while at > 0 and way[at].end <= middle:
                at -= 1
            what = "transfer" if transfers[piece] else "wait"
            seconds = float(lengths[piece])
            if way and way[at].what == what and way[at].start <= middle < way[at].end:
                found[what][way[at].row] += seconds
            else:
                rows = _in_state(rank, what, middle)
                found[what][rows] += seconds / max(len(rows), 1)
    return Exposure(**found)


def by_kind(table: OpTable, exposure: Exposure) -> list[ExposedKind]:
    """Exposed seconds by kind of communication, the costliest first; kinds add up to the lines."""
    rows = np.flatnonzero((exposure.transfer > 0) | (exposure.wait > 0)).tolist()
    found: dict[str, ExposedKind] = {}
    for row in rows:
        kind = kind_of_group(table.group[row], table.kind[row])
        entry = found.setdefault(kind, ExposedKind(kind, 0.0, 0.0))
        entry.transfer_seconds += float(exposure.transfer[row])
        entry.wait_seconds += float(exposure.wait[row])
    return sorted(found.values(), key=lambda entry: (-entry.transfer_seconds - entry.wait_seconds, entry.kind))


def by_phase(history: History, rank_class: int, pieces: Pieces) -> dict[str, float]:
    """Seconds of the compute line by phase; phases that compute at the same time share the instant equally."""
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
    lengths = pieces.lengths / sharing
    return {phase: float(lengths[mask].sum()) for phase, mask in masks.items()}


def _gaps(rank: RankHistory, pieces: Pieces, chosen: Ints) -> Iterator[tuple[int | None, list[int]]]:
    """Pieces grouped by the compute op that ends their gap (None: there is none), in order of time."""
    rows = np.flatnonzero(rank.spans.computes)
    rows = rows[np.argsort(rank.spans.start[rows], kind="stable")]
    position = np.searchsorted(rank.spans.start[rows], pieces.edges[chosen + 1]).tolist()
    for place, group in groupby(zip(position, chosen.tolist(), strict=True), key=lambda pair: pair[0]):
        yield (int(rows[place]) if place < len(rows) else None), [piece for _, piece in group]


def _way_back(history: History, rank_class: int, consumer: int | None, until: float) -> list[Stretch]:
    """The way back on one rank from its consumer's start (None: from its last end), latest first."""
    rank = history.ranks[rank_class]
    if consumer is None:
        ran = np.flatnonzero(~np.isnan(rank.spans.end))
        if not len(ran):
            return []
        last = int(ran[np.argmax(rank.spans.end[ran])])
        walk = history.walk_back((rank_class, last), local=True, from_end=True)
    else:
        walk = history.walk_back((rank_class, consumer), local=True)
    way = []
    for stretch in walk:
        if stretch.end > stretch.start:
            way.append(stretch)
        if stretch.start <= until:
            break
    return way


def _in_state(rank: RankHistory, what: str, moment: float) -> Ints:
    """Communication ops that transfer, or wait for participants, at a moment."""
    spans = rank.spans
    low, high = (spans.transfer_start, spans.end) if what == "transfer" else (spans.start, spans.transfer_start)
    return np.flatnonzero(spans.communicates & (low <= moment) & (moment < high))
