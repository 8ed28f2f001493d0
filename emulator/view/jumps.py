"""Ops that one wants to jump to: search results, waits, gaps in compute, the critical path, partners of an op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.report.traits import is_kind
from emulator.result.schema import Result
from emulator.result.tables import COMMUNICATION, Floats, Ints, Labels, OpTable

Op = tuple[int, int]  # rank class, row of its op table
GAP = 1e-3  # of the time shown: shorter stretches without compute are no gaps
_TEXT = ("name", "kind", "op_class", "phase", "module", "group", "collective", "algorithm", "stream")
_TAGS = ("layer", "microbatch", "stage")


@dataclass(frozen=True)
class Found:
    """Ops in order of start (then class and row), as parallel columns."""

    rank_class: Ints
    op: Ints
    start: Floats

    def of_class(self, rank_class: int) -> Found:
        """Those of one rank class."""
        own = self.rank_class == rank_class
        return Found(self.rank_class[own], self.op[own], self.start[own])

    def position(self, op: Op | None) -> int | None:
        """Where an op stands among them; None if it is not one of them."""
        if op is None:
            return None
        at = np.flatnonzero((self.rank_class == op[0]) & (self.op == op[1]))
        return int(at[0]) if len(at) else None

    def beside(self, moment: float, op: Op | None, direction: int) -> Op | None:
        """The next (direction 1) or previous (-1) op, as seen from one of them or else from a moment; None: no more."""
        at = self.position(op)
        if at is not None:
            at += direction
        else:
            at = int(np.searchsorted(self.start, moment)) - (direction < 0)
        return (int(self.rank_class[at]), int(self.op[at])) if 0 <= at < len(self.op) else None


def search(result: Result, text: str) -> Found:
    """Ops that take time and have a text in their name, module, kind, phase, group, collective, algorithm or stream;
    ``layer 3``, ``microbatch 2`` and ``stage 1`` find by tag. Capitals do not matter.
    """
    rows = [_matching(program, text.strip().lower()) for program in result.programs]
    return _collect(
        (line.rank_class, line.op[chosen], line.start[chosen])
        for line in result.timeline
        for chosen in (rows[result.ranks[line.rank_class].program][line.op] & (line.end > line.start),)
    )


def waits(result: Result) -> Found:
    """Communication ops that wait for participants."""
    rounding = 1e-12 * result.step_seconds
    return _collect(
        (line.rank_class, line.op[waiting], line.start[waiting])
        for line in result.timeline
        for waiting in (line.transfer_start > line.start + rounding,)  # false for nan: no participants
    )


def gaps(result: Result) -> Found:
    """Compute ops before which their rank computed nothing for a thousandth of the time shown or more."""
    parts = []
    for ranks in result.ranks:
        computes = is_kind(result.programs[ranks.program], ("compute",))
        lines = [line for line in result.timeline if line.rank_class == ranks.rank_class]
        op = np.concatenate([np.empty(0, dtype=np.int64), *(line.op for line in lines)])
        start = np.concatenate([np.empty(0), *(line.start for line in lines)])
        end = np.concatenate([np.empty(0), *(line.end for line in lines)])
        order = np.argsort(start, kind="stable")
        order = order[computes[op[order]]]
        op, start = op[order], start[order]
        free = np.concatenate([[0.0], np.maximum.accumulate(end[order])])[: len(start)]
        gap = start - free > GAP * result.shown_seconds
        parts.append((ranks.rank_class, op[gap], start[gap]))
    return _collect(parts)


def critical(result: Result) -> Found:
    """Ops on the critical path."""
    path = result.path
    if path is None:
        return _collect([])
    parts = []
    for rank_class in np.unique(path.rank_class).tolist():
        own = np.flatnonzero(path.rank_class == rank_class)[::-1]  # latest first there
        op, first = np.unique(path.op[own], return_index=True)
        parts.append((rank_class, op, path.start[own][first]))
    return _collect(parts)


def partners(result: Result, op: Op) -> list[Op]:
    """The other participants of a communication op, as far as the result tells them apart."""
    rank_class, row = op
    table = result.programs[result.ranks[rank_class].program]
    if table.kind[row] not in COMMUNICATION:
        return []
    times = [
        (line.transfer_start[at], line.end[at])
        for line in result.timeline
        if line.rank_class == rank_class
        for at in np.flatnonzero(line.op == row).tolist()
    ]
    found = []
    for line in result.timeline:
        own = result.programs[result.ranks[line.rank_class].program]
        for transfer, end in times:
            same = line.op[(line.transfer_start == transfer) & (line.end == end)].tolist()
            found += [(line.rank_class, other) for other in same if own.group[other] == table.group[row]]
    return [other for other in found if other != op]


def _matching(table: OpTable, text: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows of an op table that a search finds."""
    rows = np.zeros(len(table.flops), dtype=np.bool_)
    if not text:
        return rows
    for name in _TEXT:
        column: Labels = getattr(table, name)
        values = np.array([text in value.lower() for value in column.values], dtype=np.bool_)
        if values.any():
            rows |= values[column.codes]
    tag, _, number = text.partition(" ")
    if tag in _TAGS and number.strip().isdigit():
        rows |= np.asarray(getattr(table, tag) == int(number))
    return rows


def _collect(parts: Iterable[tuple[int, Ints, Floats]]) -> Found:
    listed: Sequence[tuple[int, Ints, Floats]] = list(parts)
    rank_class = np.repeat(np.array([c for c, _, _ in listed], dtype=np.int64), [len(op) for _, op, _ in listed])
    op = np.concatenate([np.empty(0, dtype=np.int64), *(op for _, op, _ in listed)])
    start = np.concatenate([np.empty(0), *(start for _, _, start in listed)])
    order = np.lexsort((op, rank_class, start))
    return Found(rank_class[order], op[order], start[order])
