"""What a communication op says to the other ranks: its slot (whom it speaks to) and its size.

A *slot* is one end of a line: all collectives of one group share a slot, and so do all sends to one peer with one tag.
Ops of one slot happen in issue order on every rank, which is how the k-th here is matched with the k-th there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.trace.expand import Rows, used
from emulator.trace.mesh import per_rank
from emulator.trace.schema import Op, PerRank, RankNumber, Trace

Ints = NDArray[np.int64]
COMMUNICATION = ("collective", "send", "recv")
MEMORY = ("alloc", "free")


class Slot(NamedTuple):
    """One end of a line, as a program names it: ``peer`` is None for collectives."""

    kind: str
    group: str
    peer: int | tuple[tuple[str, int], ...] | None
    tag: int


def slot(op: Op) -> Slot | None:
    """The slot of an op, None if it does not communicate."""
    if op.kind == "collective":
        return Slot("collective", op.group, None, 0)
    if op.kind in ("send", "recv"):
        peer = tuple(sorted(op.peer.items())) if isinstance(op.peer, dict) else op.peer
        return Slot(op.kind, op.group, peer, op.tag)
    return None


def slots_of_rows(rows: Rows, ops: list[Op]) -> dict[Slot, Ints]:
    """The rows of a program by slot, in issue order."""
    index: dict[Slot, int] = {}
    code = np.full(len(ops), -1, dtype=np.int64)
    for template in used(rows.template).tolist():
        key = slot(ops[template])
        if key is not None:
            code[template] = index.setdefault(key, len(index))
    of_row = code[rows.template]
    return {key: np.flatnonzero(of_row == i) for key, i in index.items()}


def message_bytes(op: Op, members: int) -> RankNumber:
    """Size S of a message as the field counts it: all-reduce input, all-gather output, reduce-scatter and all-to-all
    input of one rank, the buffer of the others. What the trace leaves out follows from the other side."""
    if op.kind == "send":
        return _first(op.bytes_in, op.bytes_out, op.bytes)
    if op.kind == "recv":
        return _first(op.bytes_out, op.bytes_in, op.bytes)
    if op.collective == "all_gather":
        return _first(op.bytes_out, _times(op.bytes_in, members))
    if op.collective == "reduce_scatter":
        return _first(op.bytes_in, _times(op.bytes_out, members))
    if op.collective == "gather":
        return _first(_times(op.bytes_in, members), op.bytes_out)
    if op.collective == "scatter":
        return _first(_times(op.bytes_out, members), op.bytes_in)
    return _first(op.bytes_in, op.bytes_out)


def message_sizes(trace: Trace, op: Op, ranks: Ints, members: int) -> NDArray[np.float64]:
    """Size S of a message on each of ``ranks``."""
    return per_rank(trace, message_bytes(op, members), ranks)


def split_bytes(trace: Trace, op: Op, outgoing: bool, ranks: Ints | None = None) -> NDArray[np.float64] | None:
    """Bytes per partner of an all-to-all: row i is the ``splits_in`` (or ``splits_out``) of ``ranks[i]`` (default: all
    ranks), shape (ranks, members).

    None if the op has no splits (equal parts).
    """
    splits = op.splits_in if outgoing else op.splits_out
    if splits is None:
        return None
    if isinstance(splits, PerRank):
        return per_rank(trace, splits, ranks)
    return np.stack([per_rank(trace, part, ranks) for part in splits], axis=1)


def _first(*values: RankNumber) -> RankNumber:
    for value in values:
        if isinstance(value, PerRank) or value:
            return value
    return 0


def _times(value: RankNumber, members: int) -> RankNumber:
    if isinstance(value, PerRank):
        return PerRank(axes=value.axes, values=(np.asarray(value.values) * members).tolist())
    return value * members
