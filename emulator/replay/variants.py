"""Variants: one program with one set of numbers.

Ranks share a program; where the trace gives per-rank numbers (uneven sizes, measured durations, jitter), ranks with
equal numbers share a *variant*. A trace without per-rank numbers has one variant per program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.replay.programs import Items, itemise
from emulator.trace.expand import Rows
from emulator.trace.mesh import communicators, per_rank, program_of_rank
from emulator.trace.messages import message_bytes
from emulator.trace.schema import Op, PerRank, RankNumber, Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Use:
    """One kind of message of one size: what a group has to do when its members have arrived.

    ``splits_of`` (an op template) marks an all-to-all with uneven parts, whose sizes belong to the group, not the rank.
    """

    collective: str
    bytes: float
    dtype: str
    root: int
    splits_of: int = -1


@dataclass(frozen=True)
class Variant:
    """Numbers of one program: seconds per row and per item, host issue times per item (None: the host is free), and
    which use each message is (index into ``Variants.uses``)."""

    program: int
    row_seconds: Floats
    item_seconds: list[float]
    row_issue: Floats | None
    item_issue: list[float] | None
    message_use: list[int]


@dataclass(frozen=True)
class Variants:
    """All variants, the variant of every rank, and the distinct uses."""

    items: list[Items]
    variants: list[Variant]
    of_rank: Ints
    uses: list[Use]


def build_variants(
    trace: Trace,
    rows: list[Rows],
    ops: list[Op],
    seconds: Sequence[RankNumber],
    compute_factor: Floats | None = None,
) -> Variants:
    """Group ranks by program and numbers. ``seconds`` is the duration of every template, possibly per rank;
    ``compute_factor`` f64[world] multiplies the durations of a rank (None: 1)."""
    program = program_of_rank(trace)
    items = [itemise(r, ops, _host_free(r, ops)) for r in rows]
    of_rank = np.empty(trace.world_size, dtype=np.int64)
    uses: dict[Use, int] = {}
    variants: list[Variant] = []
    sizes = {name: communicators(trace, name) for name in trace.groups}
    for p, unrolled in enumerate(rows):
        ranks = np.flatnonzero(program == p)
        if not len(ranks):
            continue
        used = np.unique(unrolled.template).tolist()
        members = {
            name: sizes[name].sizes[sizes[name].of_rank[ranks]]
            for name in {ops[t].group for t in used if ops[t].kind == "collective"}
        }
        columns: list[Floats] = []
        for template in used:
            columns += [
                per_rank(trace, value)[ranks] for value in _numbers(ops[template], seconds[template]) if _open(value)
            ]
        columns += [column.astype(np.float64) for column in members.values() if np.ptp(column)]
        if compute_factor is not None and (compute_factor[ranks] != 1).any():
            columns.append(compute_factor[ranks])
        if columns:
            _, representative, which = np.unique(
                np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
            )
            which = which.ravel()
        else:
            representative, which = np.zeros(1, dtype=np.int64), np.zeros(len(ranks), dtype=np.int64)
        of_rank[ranks] = which + len(variants)
        for first in representative.tolist():
            rank = int(ranks[first])
            group_size = {name: int(column[first]) for name, column in members.items()}
            factor = 1.0 if compute_factor is None else float(compute_factor[rank])
            variants.append(_variant(trace, p, items[p], ops, seconds, rank, group_size, uses, factor))
    return Variants(items=items, variants=variants, of_rank=of_rank, uses=list(uses))


def _open(value: RankNumber | None) -> bool:
    return isinstance(value, PerRank)


def _numbers(op: Op, seconds: RankNumber) -> list[RankNumber]:
    return [seconds, op.host_seconds, op.bytes_in, op.bytes_out, op.bytes]


def _host_free(rows: Rows, ops: list[Op]) -> bool:
    return not any(_open(ops[t].host_seconds) or ops[t].host_seconds for t in np.unique(rows.template).tolist())


def _variant(
    trace: Trace,
    program: int,
    items: Items,
    ops: list[Op],
    seconds: Sequence[RankNumber],
    rank: int,
    group_size: dict[str, int],
    uses: dict[Use, int],
    compute_factor: float,
) -> Variant:
    where = np.unravel_index(rank, tuple(trace.mesh.shape)) if trace.mesh.shape else ()

    def number(value: RankNumber) -> float:
        if not isinstance(value, PerRank):
            return float(value)
        table = np.asarray(value.values, dtype=np.float64)
        return float(table[tuple(where[trace.mesh.axes.index(axis)] for axis in value.axes)])

    templates = items.source.template
    used = np.unique(templates)
    by_template = np.zeros(len(ops))
    by_template[used] = [number(seconds[t]) for t in used.tolist()]
    row_seconds = by_template[templates] * compute_factor
    item_seconds = np.add.reduceat(row_seconds[items.rows], items.rows_ptr[:-1]) if len(items) else np.empty(0)
    row_issue = _issue(items, ops, used, number)
    use_of: dict[int, int] = {}
    for template in np.unique(templates[items.messages]).tolist():
        use = _use(ops[template], template, number, group_size)
        use_of[template] = uses.setdefault(use, len(uses))
    return Variant(
        program=program,
        row_seconds=row_seconds,
        item_seconds=item_seconds.tolist(),
        row_issue=row_issue,
        item_issue=None if row_issue is None else row_issue[items.rows[items.rows_ptr[:-1]]].tolist(),
        message_use=[use_of[t] for t in templates[items.messages].tolist()],
    )


def _issue(items: Items, ops: list[Op], used: Ints, number: object) -> Floats | None:
    """When the host issues each row, counted from the last host_sync before it (the host's running sum)."""
    assert callable(number)
    host = np.zeros(len(ops))
    host[used] = [number(ops[t].host_seconds) for t in used.tolist()]
    by_row = host[items.source.template]
    if not by_row.any():
        return None
    running = np.cumsum(by_row)
    epoch = np.array(items.epoch, dtype=np.int64)[items.item_of_row]
    first = np.searchsorted(epoch, np.arange(epoch.max() + 1))
    base = np.where(first > 0, running[first - 1], 0.0)
    return np.asarray(running - base[epoch], dtype=np.float64)


def _use(op: Op, template: int, number: object, group_size: dict[str, int]) -> Use:
    assert callable(number)
    root = -1 if op.root is None else op.root
    if op.kind != "collective":
        return Use(collective="send", bytes=number(message_bytes(op, 2)), dtype=op.dtype, root=-1)
    assert op.collective is not None
    if op.splits_in is not None or op.splits_out is not None:
        return Use(op.collective, 0.0, op.dtype, root, splits_of=template)
    return Use(op.collective, number(message_bytes(op, group_size[op.group])), op.dtype, root)
