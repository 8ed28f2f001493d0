"""Random orders of a whole job that its dependencies allow: if they are complete, every one gives the same numbers.

The order is drawn for all ranks together, so that no rank waits for one that waits for it: a collective ends after all
its members have started it. Between start and end of a communication anything may happen that does not depend on it.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from emulator.errors import InputError
from emulator.replay.programs import itemise
from emulator.trace.expand import Templates, rows, templates
from emulator.trace.mesh import communicators, peer_of_rank, program_of_rank
from emulator.trace.messages import COMMUNICATION, slot
from emulator.trace.schema import Op
from emulator.verify.accesses import conflicting_pairs
from emulator.verify.order import Event, Unit
from emulator.verify.recorded import Recorded

STREAMS, DATA = "streams", "data"
DEPENDENCIES = (STREAMS, DATA)


@dataclass(frozen=True)
class JobOrder:
    """Units of every rank in issue order, and the order in which each carries them out."""

    units: list[list[Unit]]
    events: list[list[Event]]


@dataclass
class _Node:
    """A start or an end, on one rank, and what comes after it. ``whole``: the end follows at once."""

    rank: int
    event: Event
    whole: bool
    before: int = 0
    after: list[int] = field(default_factory=list)


def random_order(recorded: Recorded, seed: int, *, dependencies: str = STREAMS) -> JobOrder:
    """An order drawn with ``seed``.

    ``dependencies``: ``streams`` are those of the trace, which is all the freedom that a simulator has; ``data`` are
    only those that follow from the storages ops read and write.
    """
    build = _Build(recorded)
    build.add_ranks([dependencies])
    build.add_meetings()
    return build.draw(random.Random(seed))


def issue_order(recorded: Recorded) -> JobOrder:
    """What was issued first comes first, as far as all dependencies together allow."""
    build = _Build(recorded)
    build.add_ranks(DEPENDENCIES)
    build.add_meetings()
    return build.draw(None)


class _Build:
    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.trace = recorded.trace
        self.communicators = {name: communicators(self.trace, name) for name in self.trace.groups}
        self.nodes: list[_Node] = []
        self.units: list[list[Unit]] = []
        self.meetings: dict[object, list[tuple[int, int]]] = defaultdict(list)  # name -> (start, end) of its members

    def precede(self, first: int, then: int) -> None:
        self.nodes[first].after.append(then)
        self.nodes[then].before += 1

    def add_ranks(self, dependencies: Sequence[str]) -> None:
        programs = program_of_rank(self.trace).tolist()
        known = templates(self.trace)
        edges: dict[int, list[tuple[int, int]]] = {}
        for rank, program in enumerate(programs):
            if program not in edges:
                edges[program] = self._stream_edges(program, known) if STREAMS in dependencies else []
                edges[program] += self._data_edges(rank) if DATA in dependencies else []
            self._add_rank(rank, edges[program])

    def _stream_edges(self, program: int, known: Templates) -> list[tuple[int, int]]:
        """(earlier, later) op ids by the rules of the trace: streams, dependencies, issue order of groups and peers."""
        ops = known.ops
        unrolled = rows(self.trace, program, self.recorded.name, known)
        items = itemise(unrolled, ops, host_free=True)
        ids = [ops[t].id for t in unrolled.template.tolist()]
        ptr, deps = items.all_deps_ptr.tolist(), items.all_deps.tolist()

        def whole(row: int) -> list[int]:
            """A batch of messages is over when all of them are."""
            item = int(items.item_of_row[row])
            if not items.item_messages[item]:
                return [row]
            return items.rows[items.rows_ptr[item] : items.rows_ptr[item + 1]].tolist()  # type: ignore[no-any-return]

        found = []
        for row, before in enumerate(items.queue_before.tolist()):
            behind = {*deps[ptr[row] : ptr[row + 1]], *([before] if before >= 0 else [])}
            found += [(ids[r], ids[row]) for dep in behind for r in whole(dep)]
        return found

    def _data_edges(self, rank: int) -> list[tuple[int, int]]:
        return [(first, second) for first, second, _ in conflicting_pairs(self.recorded.ops(rank))]

    def _add_rank(self, rank: int, edges: list[tuple[int, int]]) -> None:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        last_on: dict[object, int] = {}
        ordinal: dict[object, int] = defaultdict(int)
        listed: list[Unit] = []
        for op in self.recorded.ops(rank).values():
            unit = len(listed)
            listed.append(Unit((op.id,), 0.0, 0.0))
            communicates = op.kind in COMMUNICATION
            starts[op.id] = end = len(self.nodes)
            self.nodes.append(_Node(rank, Event(unit, False), whole=not communicates))
            if communicates:
                end = len(self.nodes)
                self.nodes.append(_Node(rank, Event(unit, True), whole=False))
                self.precede(starts[op.id], end)
                line = slot(op)
                if line in last_on:
                    self.precede(last_on[line], starts[op.id])
                last_on[line] = starts[op.id]
                self.meetings[self._meeting(op, rank, ordinal)].append((starts[op.id], end))
            ends[op.id] = end
        for first, then in edges:
            self.precede(ends[first], starts[then])
        self.units.append(listed)

    def _meeting(self, op: Op, rank: int, ordinal: dict[object, int]) -> object:
        if op.kind == "collective":
            name: tuple[object, ...] = (op.group, int(self.communicators[op.group].of_rank[rank]))
        else:
            peer = int(peer_of_rank(self.trace, op.peer if op.peer is not None else 0)[rank])
            name = (op.group, *((rank, peer) if op.kind == "send" else (peer, rank)), op.tag)
        key = (op.kind, name)
        ordinal[key] += 1
        return (*name, ordinal[key])

    def add_meetings(self) -> None:
        for members in self.meetings.values():
            for start, _ in members:
                for _, end in members:
                    if end != start + 1:  # the own one is there already
                        self.precede(start, end)

    def draw(self, rng: random.Random | None) -> JobOrder:
        """Kahn's algorithm; among all that may come next a random one comes, or the one issued first."""
        events: list[list[Event]] = [[] for _ in range(self.recorded.world)]
        ready: list[tuple[float, int]] = []

        def allow(index: int) -> None:
            heapq.heappush(ready, (index if rng is None else rng.random(), index))

        for index, node in enumerate(self.nodes):
            if node.before == 0:
                allow(index)
        drawn = 0
        while ready:
            node = self.nodes[heapq.heappop(ready)[1]]
            drawn += 1
            events[node.rank].append(node.event)
            if node.whole:
                events[node.rank].append(Event(node.event.unit, True))
            for other in node.after:
                self.nodes[other].before -= 1
                if self.nodes[other].before == 0:
                    allow(other)
        if drawn < len(self.nodes):
            raise InputError("its dependencies lead in a circle", source=self.recorded.name)
        return JobOrder(self.units, events)
