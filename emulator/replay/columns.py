"""From items back to rows: when every op of a program was ready, started, transferred and ended, and what held it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.replay.engine import NodeTimes
from emulator.replay.programs import Items
from emulator.replay.variants import Variant
from emulator.result.tables import HELD_BY_HOST, HELD_BY_START
from emulator.rows import owners
from emulator.trace.expand import Rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RowTimes:
    """Times of the rows of one node, seconds from the start of the step; see the result schema."""

    ready: Floats
    start: Floats
    transfer_start: Floats
    end: Floats
    held_by: Ints
    arrived_last: Ints


def row_times(items: Items, variant: Variant, times: NodeTimes) -> RowTimes:
    """Times of every row. Inside an item of compute ops each starts when the one before ends; where the chip was
    slowed, both follow from the work done."""
    rows: Rows = items.source
    count = len(rows)
    start, end = np.empty(count), np.empty(count)
    item = owners(items.rows_ptr)
    seconds = variant.row_seconds[items.rows]
    running = np.cumsum(seconds)
    first = items.rows_ptr[:-1]
    before_item = (running - seconds)[first][item] if count else running
    began, ended = running - seconds - before_item, running - before_item
    if times.rate is None:
        began, ended = times.item_start[item] + began, times.item_start[item] + ended
    else:
        done = times.rate.work(times.item_start)[item]
        began, ended = times.rate.moment(done + began), times.rate.moment(done + ended)
        began[first] = times.item_start  # exactly, not to rounding
    item_end = times.item_end[item]  # which rounding must not let a row pass
    start[items.rows], end[items.rows] = np.minimum(began, item_end), np.minimum(ended, item_end)
    last = items.rows[items.rows_ptr[1:] - 1]
    end[last] = times.item_end  # exactly, not to rounding
    transfer = np.full(count, np.nan)
    arrived = np.full(count, -1, dtype=np.int64)
    start[items.messages] = times.item_start[items.item_of_row[items.messages]]
    end[items.messages] = times.message_end
    transfer[items.messages] = times.transfer_start
    arrived[items.messages] = times.arrived_last
    issued = _issued(items, variant, times)
    deps_end, deps_row = _latest(items, end)
    ready = np.maximum(deps_end, issued)
    before = items.queue_before
    before_end = np.where(before >= 0, end[before], 0.0) if count else end
    held = np.where(before_end >= deps_end, before, deps_row)
    held_end = np.maximum(before_end, deps_end)
    held = np.where(held_end <= 0, HELD_BY_START, held)
    held = np.where(issued > held_end, HELD_BY_HOST, held)
    return RowTimes(ready, start, transfer, end, held, arrived)


def _issued(items: Items, variant: Variant, times: NodeTimes) -> Floats:
    """When the host had issued each row: host time since the last host_sync, plus that sync's end."""
    if not len(items):
        return np.zeros(0)
    epoch = np.array(items.epoch, dtype=np.int64)[items.item_of_row]
    syncs = items.syncs
    epoch_start = np.concatenate([[0.0], times.item_end[syncs]])
    issued = epoch_start[epoch]
    return issued if variant.row_issue is None else issued + variant.row_issue


def _latest(items: Items, end: Floats) -> tuple[Floats, Ints]:
    """End and row of the dependency that each row got last (0 and -1 without any)."""
    count = len(end)
    counts = np.diff(items.all_deps_ptr)
    latest_end = np.zeros(count)
    latest_row = np.full(count, -1, dtype=np.int64)
    has = counts > 0
    if has.any():
        owner = np.repeat(np.arange(count), counts)
        order = np.lexsort((items.all_deps, end[items.all_deps], owner))
        at = order[items.all_deps_ptr[1:][has] - 1]
        latest_row[has] = items.all_deps[at]
        latest_end[has] = end[items.all_deps[at]]
    return latest_end, latest_row
