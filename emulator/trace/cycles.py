"""Ops of one program that wait for each other, by everything that the rules of a replay (docs/trace.md) make them wait
for: dependencies, streams, queues of lone messages, batches, and host synchronisations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from emulator.rows import by_value, owners
from emulator.trace.expand import Ints, Rows, used
from emulator.trace.fault import Fault
from emulator.trace.messages import slot, slots_of_rows
from emulator.trace.schema import Op

_LISTED = 6


def cycle_faults(ops: list[Op], place: str, program: Rows) -> Iterator[Fault]:
    """The first cycle of a program, and what waits for a host_sync that is issued after it.

    What comes earlier cannot wait for what comes later; only if a dependency, or the order of messages of a batch that
    others interrupt, points forward the graph has to be walked.
    """
    owner = owners(program.deps_ptr)
    unit = _units(ops, program)
    forward = (program.deps >= owner) | ((unit[program.deps] >= unit[owner]) & (unit[program.deps] != unit[owner]))
    if not forward.any() and not _torn(ops, program, unit):
        return
    for row, dep in zip(owner[forward].tolist(), program.deps[forward].tolist(), strict=True):
        late, early = (ops[program.template[r]] for r in (dep, row))
        if late.kind == "host_sync" and early.kind != "host_sync":
            yield Fault(f"{place} op {early.id}", f"depends on host_sync {late.id}, which is issued after it")
            return
    cycle = _cycle(
        len(program), [*zip(program.deps.tolist(), owner.tolist(), strict=True), *_order(ops, program, unit)], unit
    )
    if cycle:
        found = [ops[program.template[row]] for row in cycle]
        names = ", ".join(str(op.id) for op in found[:_LISTED]) + (", ..." if len(found) > _LISTED else "")
        why = "; a host_sync holds every op issued after it" if any(op.kind == "host_sync" for op in found) else ""
        yield Fault(f"{place} op {found[0].id}", f"a cycle of dependencies (ops {names}){why}")


def _units(ops: list[Op], program: Rows) -> Ints:
    """The first row of the batch that each row belongs to, or the row itself."""
    unit = np.arange(len(program))
    batched = np.zeros(len(ops), dtype=np.bool_)
    for template in used(program.template).tolist():
        batched[template] = ops[template].kind in ("send", "recv") and ops[template].batch is not None
    first: dict[tuple[int, str, int | None], int] = {}
    for row in np.flatnonzero(batched[program.template]).tolist():
        op = ops[program.template[row]]
        unit[row] = first.setdefault((int(program.instance[row]), op.stream, op.batch), row)
    return unit


def _torn(ops: list[Op], program: Rows, unit: Ints) -> bool:
    """Whether a part of a batch comes after a message of a later unit on its line."""
    gaps = (unit[1:] != np.arange(1, len(unit))) & (unit[1:] != unit[:-1])
    return bool(gaps.any()) and any(
        (np.diff(unit[members]) < 0).any() for members in slots_of_rows(program, ops).values()
    )


def _order(ops: list[Op], program: Rows, unit: Ints) -> Iterator[tuple[int, int]]:
    """Pairs of rows of which the first has to come before the second without a dependency saying so."""
    stream_last: dict[str, int] = {}  # of what is not a lone message
    lone_since: dict[str, dict[object, int]] = {}  # the last of each queue since then
    queue_last: dict[object, int] = {}
    sync = -1
    for row, template in enumerate(program.template.tolist()):
        op = ops[template]
        if sync >= 0 and unit[row] == row:
            yield sync, row
        if op.kind == "host_sync":
            if not op.deps and op.stream in stream_last:
                yield from (
                    (before, row) for before in (stream_last[op.stream], *lone_since.get(op.stream, {}).values())
                )
            sync = row
            continue
        if op.stream in stream_last:
            yield stream_last[op.stream], row
        if op.kind in ("send", "recv") and op.batch is None:
            message = slot(op)
            assert message is not None
            queue = (op.stream, *message[:3])
            if queue in queue_last:
                yield queue_last[queue], row
            queue_last[queue] = lone_since.setdefault(op.stream, {})[queue] = row
        else:
            for before in lone_since.pop(op.stream, {}).values():
                yield before, row
            stream_last[op.stream] = row
    for members in slots_of_rows(program, ops).values():
        yield from pairwise(members.tolist())


def _cycle(count: int, edges: list[tuple[int, int]], unit: Ints) -> list[int]:
    """Rows that wait for each other in a circle, the earliest first; none if there is no such circle."""
    source, target = np.array(edges, dtype=np.int64).T
    inside = (unit[source] == unit[target]) & (source != target)  # parts of a batch start together
    source, target = unit[source[~inside]], unit[target[~inside]]
    ptr, order = by_value(source, count)
    source, target = source[order], target[order]
    waiting = np.bincount(target, minlength=count)
    ready = np.flatnonzero(waiting == 0).tolist()
    while ready:
        row = ready.pop()
        for other in target[ptr[row] : ptr[row + 1]].tolist():
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    stuck = waiting > 0
    if not stuck.any():
        return []
    held_by = np.zeros(count, dtype=np.int64)
    both = stuck[source] & stuck[target]
    held_by[target[both]] = source[both]  # one that each stuck row waits for
    row, met = int(np.flatnonzero(stuck)[0]), dict[int, None]()
    while row not in met:
        met[row] = None
        row = int(held_by[row])
    circle = list(met)[list(met).index(row) :]
    start = circle.index(min(circle))
    return circle[start:] + circle[:start]
