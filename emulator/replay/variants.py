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
from emulator.trace.mesh import group_sizes, per_rank, program_of_rank
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
    for p, unrolled in enumerate(rows):
        ranks = np.flatnonzero(program == p)
        if not len(ranks):
            continue
        used = np.unique(unrolled.template).tolist()
        members = {
            name: group_sizes(trace, name, ranks)
            for name in {ops[t].group for t in used if ops[t].kind == "collective"}
        }
        columns: list[Floats] = []
        for template in used:
            columns += [
                per_rank(trace, value, ranks) for value in _numbers(ops[template], seconds[template]) if _open(value)
            ]
        columns += [column.astype(np.float64) for column in members.values() if np.ptp(column)]
        if compute_factor is not None and (compute_factor[ranks] != 1).any():
            columns.append(compute_factor[ranks])
        if columns:
            table = np.stack(columns, axis=1)
            _, representative, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
            which = which.ravel()
        else:
            representative, which = np.zeros(1, dtype=np.int64), np.zeros(len(ranks), dtype=np.int64)
        of_rank[ranks] = which + len(variants)
        chosen = ranks[representative]
        factor = None if compute_factor is None else compute_factor[chosen]
        chosen_sizes = {name: column[representative] for name, column in members.items()}
        variants += _of_program(trace, p, items[p], ops, seconds, chosen, chosen_sizes, uses, factor)
    return Variants(items=items, variants=variants, of_rank=of_rank, uses=list(uses))


def _open(value: RankNumber | None) -> bool:
    return isinstance(value, PerRank)


def _numbers(op: Op, seconds: RankNumber) -> list[RankNumber]:
    return [seconds, op.host_seconds, op.bytes_in, op.bytes_out, op.bytes]


def _host_free(rows: Rows, ops: list[Op]) -> bool:
    return not any(_open(ops[t].host_seconds) or ops[t].host_seconds for t in np.unique(rows.template).tolist())


def _of_program(
    trace: Trace,
    program: int,
    items: Items,
    ops: list[Op],
    seconds: Sequence[RankNumber],
    ranks: Ints,
    group_sizes: dict[str, Ints],
    uses: dict[Use, int],
    compute_factor: Floats | None,
) -> list[Variant]:
    """The variants of one program, one for each of the ``ranks`` that stand for them. Numbers of the trace become
    arrays over these ranks once, not once per rank."""
    templates = items.source.template
    used, place = np.unique(templates, return_inverse=True)
    place = place.ravel()
    durations = np.stack([per_rank(trace, seconds[t], ranks) for t in used.tolist()] or [np.empty(len(ranks))])
    if compute_factor is not None:
        durations = durations * compute_factor
    host = np.stack([per_rank(trace, ops[t].host_seconds, ranks) for t in used.tolist()] or [np.zeros(len(ranks))])
    speaking = np.unique(templates[items.messages]).tolist()
    amounts = {t: per_rank(trace, _amounts(ops[t]), ranks) for t in speaking}
    message_templates = templates[items.messages].tolist()
    found = []
    for i in range(len(ranks)):
        row_seconds = durations[place, i] if len(place) else np.empty(0)
        row_issue = _issue(items, host[place, i]) if host.any() else None
        use_of = {
            t: uses.setdefault(_use(ops[t], t, _amount(amounts[t], ops[t], group_sizes, i)), len(uses))
            for t in speaking
        }
        item_seconds = np.add.reduceat(row_seconds[items.rows], items.rows_ptr[:-1]) if len(items) else np.empty(0)
        found.append(
            Variant(
                program=program,
                row_seconds=row_seconds,
                item_seconds=item_seconds.tolist(),
                row_issue=row_issue,
                item_issue=None if row_issue is None else row_issue[items.rows[items.rows_ptr[:-1]]].tolist(),
                message_use=[use_of[t] for t in message_templates],
            )
        )
    return found


def _amounts(op: Op) -> RankNumber:
    """The size of a message, for a group of one member where it depends on how many there are."""
    return message_bytes(op, 1 if op.kind == "collective" else 2)


def _amount(amounts: Floats, op: Op, group_sizes: dict[str, Ints], i: int) -> float:
    """The size of a message on rank i: what was counted for one member, times members where only a part was given."""
    if op.kind != "collective":
        return float(amounts[i])
    members = int(group_sizes[op.group][i])
    whole, single = message_bytes(op, members), message_bytes(op, 1)
    return float(amounts[i]) * (members if whole != single else 1)


def _issue(items: Items, by_row: Floats) -> Floats:
    """When the host issues each row, counted from the last host_sync before it (the host's running sum)."""
    running = np.cumsum(by_row)
    epoch = np.array(items.epoch, dtype=np.int64)[items.item_of_row]
    first = np.searchsorted(epoch, np.arange(epoch.max() + 1))
    base = np.where(first > 0, running[first - 1], 0.0)
    return np.asarray(running - base[epoch], dtype=np.float64)


def _use(op: Op, template: int, amount: float) -> Use:
    root = -1 if op.root is None else op.root
    if op.kind != "collective":
        return Use(collective="send", bytes=amount, dtype=op.dtype, root=-1)
    assert op.collective is not None
    if op.splits_in is not None or op.splits_out is not None:
        return Use(op.collective, 0.0, op.dtype, root, splits_of=template)
    return Use(op.collective, amount, op.dtype, root)
