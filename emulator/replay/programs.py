"""A program as the engine runs it: queues of items, with only the dependencies that can hold something up.

A *queue* is what executes in order: a stream, or one direction to one peer for lone sends and receives. An *item* is
what the engine starts and ends as one thing: a run of compute ops that nothing can interrupt, a collective, a unit of
sends and receives, or the host waiting. Folding many ops into one item is exact: inside a run each op starts
when the one before ends, so their times follow by addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from emulator.rows import offsets
from emulator.trace.expand import Rows
from emulator.trace.messages import COMMUNICATION, MEMORY, Slot, slot, slots_of_rows
from emulator.trace.schema import Op

Ints = NDArray[np.int64]
HOST = -1  # the queue of host_sync ops: the host itself


@dataclass(frozen=True)
class Items:
    """One program in items, in issue order of their first rows.

    ``rows``/``rows_ptr``: the rows of each item. ``queue``: its queue (HOST for a host_sync). ``deps``: items of other
    queues that must have ended, stream order left out. ``epoch``: number of host_syncs issued before it.
    ``messages``: for each message of the program its row, in issue order; ``item_messages`` lists them per item and
    ``message_slot`` gives the slot of each.
    """

    source: Rows
    queues: list[str]
    queue_items: list[list[int]]
    rows: Ints
    rows_ptr: Ints
    item_of_row: Ints
    queue: list[int]
    deps: list[tuple[int, ...]]
    epoch: list[int]
    messages: Ints
    item_messages: list[tuple[int, ...]]
    message_slot: list[int]
    slots: list[Slot]
    queue_before: Ints  # the row before each row on its queue (-1: none)
    all_deps_ptr: Ints  # explicit and implied dependencies by row, for telling what held an op
    all_deps: Ints

    def __len__(self) -> int:
        return len(self.queue)

    @cached_property
    def syncs(self) -> list[int]:
        """The host_syncs, in issue order."""
        return [i for i, queue in enumerate(self.queue) if queue == HOST]


def itemise(rows: Rows, ops: list[Op], host_free: bool) -> Items:
    """Cut a program into items. ``host_free``: the host never holds an op (no op has host time), so runs may merge."""
    build = _Build(rows, ops)
    build.assign_queues()
    build.find_dependencies()
    return build.cut(host_free)


class _Build:
    def __init__(self, rows: Rows, ops: list[Op]) -> None:
        self.rows = rows
        self.n = len(rows)
        self.ops = ops
        self.template = rows.template.tolist()
        self.kind = [ops[t].kind for t in self.template]
        # Memory that comes or goes takes no time: it holds nothing that comes after it on its stream.
        free = np.diff(rows.deps_ptr) == 0
        self.passes = [kind in MEMORY and alone for kind, alone in zip(self.kind, free.tolist(), strict=True)]
        self.queue_of: dict[object, int] = {}
        self.names: list[str] = []
        self.queue = [0] * self.n
        self.unit = [0] * self.n  # first row of the batch a row belongs to, else the row itself
        self.unit_rows: dict[int, list[int]] = {}
        self.position = [0] * self.n
        self.lone = [False] * self.n

    def _queue(self, key: object, name: str) -> int:
        index = self.queue_of.get(key)
        if index is None:
            index = self.queue_of[key] = len(self.names)
            self.names.append(name)
        return index

    def assign_queues(self) -> None:
        """Streams are queues; a lone send or receive queues per peer and direction; a batch is one unit."""
        instance = self.rows.instance.tolist()
        batches: dict[tuple[int, str, int], int] = {}
        lengths: list[int] = []
        before = np.full(self.n, -1, dtype=np.int64)
        last: dict[int, int] = {}
        for row, template in enumerate(self.template):
            op = self.ops[template]
            self.unit[row] = row
            if op.kind == "host_sync":
                self.queue[row] = HOST
                continue
            if op.kind in ("send", "recv"):
                if op.batch is None:
                    key = slot(op)
                    assert key is not None
                    self.lone[row] = True
                    queue = self._queue((op.stream, key.kind, key.group, key.peer), op.stream)
                else:
                    queue = self._queue(op.stream, op.stream)
                    first = batches.setdefault((instance[row], op.stream, op.batch), row)
                    self.unit[row] = first
                    self.unit_rows.setdefault(first, []).append(row)
            else:
                queue = self._queue(op.stream, op.stream)
            self.queue[row] = queue
            if queue == len(lengths):
                lengths.append(0)
            if self.unit[row] == row:
                self.position[row] = lengths[queue]
                lengths[queue] += 1
                before[row] = last.get(queue, -1)
            else:
                self.position[row] = self.position[self.unit[row]]
                before[row] = before[self.unit[row]]
            if not self.passes[row]:
                last[queue] = row
        self.before = before

    def find_dependencies(self) -> None:
        """Explicit dependencies plus what streams, groups and peers imply across queues (row by row)."""
        ptr, deps = self.rows.deps_ptr.tolist(), self.rows.deps.tolist()
        slot_before = self._slot_before()
        main_last: dict[str, int] = {}  # last op of a stream that is not a lone send or receive
        lone_since: dict[str, dict[int, int]] = {}  # lone ones since then: queue -> row
        every: list[list[int]] = []
        for row, template in enumerate(self.template):
            op = self.ops[template]
            found = deps[ptr[row] : ptr[row + 1]]
            stream = op.stream
            if op.kind == "host_sync":
                if not found and stream in main_last:
                    found = [main_last[stream], *lone_since.get(stream, {}).values()]
            elif self.lone[row]:
                if stream in main_last:
                    found = [*found, main_last[stream]]
                lone_since.setdefault(stream, {})[self.queue[row]] = row
            else:
                if waiting := lone_since.pop(stream, None):
                    found = [*found, *waiting.values()]
                if not self.passes[row]:
                    main_last[stream] = row
            if slot_before[row] >= 0:
                found = [*found, slot_before[row]]
            every.append(found)
        self.every = every

    def _slot_before(self) -> list[int]:
        """Messages of one slot go in issue order even when the ops run on different streams."""
        before = [-1] * self.n
        for members in slots_of_rows(self.rows, self.ops).values():
            listed = members.tolist()
            for a, b in pairwise(listed):
                if self.unit[a] != self.unit[b]:
                    before[b] = a
        return before

    def needed(self) -> tuple[list[list[int]], set[int]]:
        """Per unit (by first row) the dependencies that are not implied by others, and all rows so depended on.

        A vector clock per queue says how far every other queue is known to be when the next op of this queue starts.
        """
        clocks: list[dict[int, int]] = [{} for _ in self.names]
        at_start: list[dict[int, int] | None] = [None] * self.n
        need: list[list[int]] = [[] for _ in range(self.n)]
        targets: set[int] = set()
        host_clock: dict[int, int] = {}
        for row in range(self.n):
            if self.unit[row] != row:
                continue
            queue = self.queue[row]
            clock = host_clock if queue == HOST else clocks[queue]
            wanted = self.every[row]
            if row in self.unit_rows:
                wanted = [d for member in self.unit_rows[row] for d in self.every[member]]
            changed = False
            for dep in sorted(wanted, reverse=True):
                other = self.queue[dep]
                if other in (HOST, queue) or clock.get(other, -1) >= self.position[dep]:
                    continue
                if not changed:
                    clock = dict(clock)
                    changed = True
                need[row].append(dep)
                targets.add(dep)
                for q, p in (at_start[self.unit[dep]] or {}).items():
                    if p > clock.get(q, -1):
                        clock[q] = p
                if self.position[dep] > clock.get(other, -1):
                    clock[other] = self.position[dep]
            if changed:
                if queue == HOST:
                    host_clock = clock
                else:
                    clocks[queue] = clock
            at_start[row] = clock
        return need, targets

    def cut(self, host_free: bool) -> Items:
        need, targets = self.needed()
        item_of = [-1] * self.n
        item_rows: list[list[int]] = []
        queue: list[int] = []
        epochs: list[int] = []
        deps_rows: list[list[int]] = []
        open_item = [-1] * len(self.names)  # the run that may still grow, per queue
        queue_items: list[list[int]] = [[] for _ in self.names]
        epoch = 0
        for row in range(self.n):
            if self.unit[row] != row:
                item = item_of[self.unit[row]]
                item_of[row] = item
                item_rows[item].append(row)
                continue
            q = self.queue[row]
            communicates = self.kind[row] in COMMUNICATION
            item = open_item[q] if q != HOST else -1
            if item < 0 or communicates or need[row] or epochs[item] != epoch or not host_free:
                item = len(item_rows)
                item_rows.append([])
                queue.append(q)
                epochs.append(epoch)
                deps_rows.append(need[row])
                if q != HOST:
                    queue_items[q].append(item)
            item_rows[item].append(row)
            item_of[row] = item
            if q == HOST:
                epoch += 1
            else:
                open_item[q] = -1 if communicates or row in targets else item
        return self._items(item_of, item_rows, queue, epochs, deps_rows, queue_items)

    def _items(
        self,
        item_of: list[int],
        item_rows: list[list[int]],
        queue: list[int],
        epochs: list[int],
        deps_rows: list[list[int]],
        queue_items: list[list[int]],
    ) -> Items:
        slots: dict[Slot, int] = {}
        messages: list[int] = []
        message_slot: list[int] = []
        item_messages: list[tuple[int, ...]] = [()] * len(item_rows)
        for row, kind in enumerate(self.kind):
            if kind in COMMUNICATION:
                key = slot(self.ops[self.template[row]])
                assert key is not None
                item_messages[item_of[row]] += (len(messages),)
                messages.append(row)
                message_slot.append(slots.setdefault(key, len(slots)))
        every = self.every
        return Items(
            source=self.rows,
            queues=self.names,
            queue_items=queue_items,
            rows=np.array([row for rows in item_rows for row in rows], dtype=np.int64),
            rows_ptr=offsets([len(rows) for rows in item_rows]),
            item_of_row=np.array(item_of, dtype=np.int64),
            queue=queue,
            deps=[tuple(sorted({item_of[d] for d in deps} - {i})) for i, deps in enumerate(deps_rows)],
            epoch=epochs,
            messages=np.array(messages, dtype=np.int64),
            item_messages=item_messages,
            message_slot=message_slot,
            slots=list(slots),
            queue_before=self.before,
            all_deps_ptr=offsets([len(d) for d in every]),
            all_deps=np.array([d for deps in every for d in deps], dtype=np.int64),
        )
