"""The engine: runs the tables on a SimPy clock.

One SimPy process per node is its host, which issues ops and waits in host_syncs. Streams are not processes: a queue
starts its next item when the one before has ended and the item's dependencies are done. A communication item arrives
at its groups; the last arrival starts the transfer, phase by phase. The engine keeps plain lists and numbers in the
hot path and makes no object per op.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from emulator.network.clock import Clock
from emulator.network.fluid import Network, Route, mark_private
from emulator.network.sharing import Sharers
from emulator.replay.chip import Chip
from emulator.replay.deadlock import StuckError
from emulator.replay.programs import HOST
from emulator.replay.state import Group, Node, ReadyPhase, SeveralAtOnce
from emulator.replay.tables import Tables, wait_for
from emulator.result.tables import ComputeRate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_PROGRESS_EVERY = 20_000
FIRST = -1  # priority of what must come before everything else of the same instant


@dataclass(frozen=True)
class NodeTimes:
    """When the items and messages of one node ran: seconds from the start of the step.

    ``item_start``/``item_end`` by item; ``transfer_start``, ``message_end`` and ``arrived_last`` (the node that came
    last) by message, and ``execution``: its place in :class:`Executions`. ``rate``: how fast its chip computed, None
    where nothing could slow it.
    """

    item_start: Floats
    item_end: Floats
    transfer_start: Floats
    message_end: Floats
    arrived_last: Ints
    execution: Ints
    rate: ComputeRate | None


@dataclass(frozen=True)
class Executions:
    """Every time a group did something: when (seconds), which group, which use of it, which node came last.

    ``lost`` f64[N, 3]: seconds lost to kin, to strangers and to links slower than usual
    (:mod:`emulator.network.sharing`); they add up to the time from start to end minus the time alone.
    """

    start: Floats
    end: Floats
    group: Ints
    use: Ints
    last: Ints
    lost: Floats


@dataclass(frozen=True)
class Run:
    """Times of all nodes, what the groups did, and how much work it was."""

    nodes: list[NodeTimes]
    transfers: Executions
    executions: int
    events: int
    solves: int


class Engine:
    """Runs tables to the end. ``progress(done, total)`` in items is called now and then.

    ``kin`` tells who shares links with whom, given the route of every phase row.
    """

    def __init__(
        self,
        tables: Tables,
        kin: Callable[[Sequence[Route]], Sharers],
        progress: Callable[[int, int], None] | None = None,
        *,
        private_routes: bool = True,
    ) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, tables.capacity)
        self.kin = kin
        self.tables = tables
        self.progress = progress
        self.private_routes = private_routes
        self.finished = 0
        self.ready: list[tuple[Node, int]] = []
        self.draining = False
        self.transfer_start: list[float] = []
        self.transfer_end: list[float] = []
        self.transfer_group: list[int] = []
        self.transfer_use: list[int] = []
        self.transfer_last: list[int] = []
        groups = self._groups()
        slots = tables.node_slots.tolist()
        ptr = tables.node_slot_ptr.tolist()
        slowing = bool((tables.group_share > 0).any())
        self.nodes = []
        for i, v in enumerate(tables.node_variant.tolist()):
            variant = tables.variants.variants[v]
            mine = [groups[g] for g in slots[ptr[i] : ptr[i + 1]]]
            chip = Chip(self.clock) if slowing else None
            self.nodes.append(Node(i, tables.variants.items[variant.program], variant, mine, chip))
        self.total = sum(len(node.items) for node in self.nodes)

    def _groups(self) -> list[Group]:
        tables, network = self.tables, self.network
        ptr = tables.phase_ptr.tolist()
        link, weight = tables.phase_link.tolist(), tables.phase_weight.tolist()
        start = tables.phase_start.tolist()
        owner = tables.group_of_row.tolist()
        routes = [
            network.route(link[a:b], weight[a:b], group, rate)
            for (a, b), group, rate in zip(pairwise(ptr), owner, tables.phase_rate.tolist(), strict=True)
        ]
        network.keep_accounts(self.kin(routes))
        several = _concurrent_groups(tables)
        if self.private_routes:
            uses: list[tuple[Route, object]] = list(zip(routes, owner, strict=True))
            for g in several:  # it does several things at once: no plain timeouts for it
                uses += [(routes[row], "several") for row in range(start[g], start[g + 1])]
            mark_private(uses, changing=tables.link_events)
        latency, hidden = tables.phase_latency.tolist(), tables.phase_hidden.tolist()
        share = tables.group_share.tolist()
        groups = []
        for g, (kind, need) in enumerate(zip(tables.group_kind.tolist(), tables.group_need.tolist(), strict=True)):
            base = start[g]
            plans = {
                use: tuple(
                    ReadyPhase(routes[row], amount, wait_for(latency[row], hidden[row], amount))
                    for row, amount in plan.rows(base)
                )
                for use, plan in tables.kinds[kind].plans.items()
            }
            groups.append((SeveralAtOnce if g in several else Group)(self, g, need, share[g], plans))
        return groups

    def run(self) -> Run:
        """Run to the end. Raises StuckError if the replay cannot go on."""
        for link, events in self.tables.link_events.items():
            for time, capacity in events:
                self.clock.call_at(time, partial(self._change, link, capacity), FIRST)
        for node in self.nodes:
            self.clock.process(self._host(node))
        self.clock.run()
        if self.finished < self.total:
            raise StuckError(self.nodes, self.tables.node_name)
        transfers = self._executions()
        return Run(
            nodes=[_times(node, transfers) for node in self.nodes],
            transfers=transfers,
            executions=sum(len(node.items.source) for node in self.nodes),
            events=self.clock.events,
            solves=self.network.counters.solves,
        )

    def _executions(self) -> Executions:
        lost = np.zeros((len(self.transfer_start), 3))
        for execution, parts in self.network.lost.items():
            lost[execution] = parts
        return Executions(
            start=np.array(self.transfer_start),
            end=np.array(self.transfer_end),
            group=np.array(self.transfer_group, dtype=np.int64),
            use=np.array(self.transfer_use, dtype=np.int64),
            last=np.array(self.transfer_last, dtype=np.int64),
            lost=lost,
        )

    def _change(self, link: int, capacity: float, _: object) -> None:
        if self.finished < self.total:  # a change after the last op has no effect and must not stretch the clock
            self.network.set_capacity(link, capacity)

    # -- hosts

    def _host(self, node: Node) -> Generator[object, object, None]:
        """The host of a node: issues everything up to its next host_sync, holds there, goes on."""
        syncs = node.items.syncs
        for sync in syncs:
            self._issue(node)
            if node.issue is not None:
                yield self.clock.timeout(node.epoch_start + node.issue[sync] - self.clock.now)
            for dep in node.items.deps[sync]:
                if not node.done[dep]:
                    event = self.clock.event()
                    node.waiting.setdefault(dep, []).append(HOST)
                    node.sync_done = partial(event.succeed)
                    yield event
            node.item_start[sync] = node.item_end[sync] = self.clock.now
            node.done[sync] = 1
            node.epoch += 1
            node.epoch_start = self.clock.now
            self.finished += 1
        self._issue(node)

    def _issue(self, node: Node) -> None:
        self.ready.extend((node, queue) for queue in range(len(node.position)))
        self._drain()

    # -- queues

    def _drain(self) -> None:
        """Advance every queue that may be able to; a loop instead of recursion, for chains of any length."""
        if self.draining:
            return
        self.draining = True
        ready = self.ready
        while ready:
            node, queue = ready.pop()
            self._advance(node, queue)
        self.draining = False

    def _advance(self, node: Node, queue: int) -> None:
        listed = node.queue_items[queue]
        position = node.position[queue]
        if position == len(listed):
            return
        item = listed[position]
        if node.started[item] or (node.host_holds and self._held_by_host(node, item, queue)):
            return
        deps = node.deps[item]
        if deps:
            done = node.done
            for dep in deps:
                if not done[dep]:
                    node.waiting.setdefault(dep, []).append(queue)
                    return
        now = self.clock._now
        node.started[item] = 1
        node.item_start[item] = now
        messages = node.messages[item]
        if messages:
            if node.chip is not None:
                node.chip.enter(item, max(node.groups[message].share for message in messages))
            for message in messages:
                node.groups[message].arrive(node, item, message, node.use[message])
            return
        seconds = node.seconds[item]
        if seconds > 0 and node.chip is not None:
            node.chip.compute(seconds, lambda _: self._complete(node, item, queue))
        elif seconds > 0:
            self.clock.call_at(now + seconds, lambda _: self._complete(node, item, queue))
        else:
            self._finish(node, item, queue)

    def _held_by_host(self, node: Node, item: int, queue: int) -> bool:
        """Has the host not issued the item yet? The queue is woken when it has."""
        epoch = node.items.epoch[item]
        if epoch > node.epoch:  # the host waits in a host_sync before it
            return True
        if node.issue is not None and epoch == node.epoch:
            issue = node.epoch_start + node.issue[item]
            if issue > self.clock._now:
                self.clock.call_at(issue, lambda _: self._wake(node, queue))
                return True
        return False

    def _wake(self, node: Node, queue: int) -> None:
        self.ready.append((node, queue))
        self._drain()

    def _complete(self, node: Node, item: int, queue: int) -> None:
        self._finish(node, item, queue)
        self._drain()

    def _finish(self, node: Node, item: int, queue: int) -> None:
        node.item_end[item] = self.clock._now
        node.done[item] = 1
        node.position[queue] += 1
        self.finished += 1
        if self.progress is not None and self.finished % _PROGRESS_EVERY == 0:
            self.progress(self.finished, self.total)
        ready = self.ready
        waiting = node.waiting.pop(item, None)
        if waiting is not None:
            for other in waiting:
                if other == HOST:
                    assert node.sync_done is not None
                    node.sync_done()
                else:
                    ready.append((node, other))
        ready.append((node, queue))

    # -- transfers

    def transfer(
        self, execution: int, phases: tuple[ReadyPhase, ...], at: int, members: list[tuple[Node, int, int]]
    ) -> None:
        """Run phase ``at`` and those after it, then end the message for all members."""
        if at == len(phases):
            self.transfer_end[execution] = self.clock._now
            self._end_messages(members)
            return
        phase = phases[at]
        after = partial(self.transfer, execution, phases, at + 1, members)
        route = phase.route
        if route.private or not route.links:
            moving = phase.amount / route.rate_alone if route.links else 0.0
            if route.charge is not None:
                self.network.put_down(execution, route.charge, moving)
            self.clock.call_at(self.clock._now + (phase.latency + moving), lambda _: after())
        elif phase.latency > 0:
            start = partial(self.network.start, route, phase.amount, after, execution)
            self.clock.call_at(self.clock._now + phase.latency, lambda _: start())
        else:
            self.network.start(route, phase.amount, after, execution)

    def _end_messages(self, members: list[tuple[Node, int, int]]) -> None:
        for node, item, _ in members:
            node.open_messages[item] -= 1
            if node.open_messages[item] == 0:
                if node.chip is not None:
                    node.chip.leave(item)
                self._finish(node, item, node.items.queue[item])
        self._drain()


def _concurrent_groups(tables: Tables) -> set[int]:
    """Groups to which a batch posts several messages at once."""
    found: set[int] = set()
    twice = []
    for variant in tables.variants.variants:
        items = tables.variants.items[variant.program]
        slots = [[items.message_slot[m] for m in messages] for messages in items.item_messages if len(messages) > 1]
        twice.append({slot for listed in slots for slot in listed if listed.count(slot) > 1})
    for node, variant_number in enumerate(tables.node_variant.tolist()):
        found.update(int(tables.node_slots[tables.node_slot_ptr[node] + slot]) for slot in twice[variant_number])
    return found


def _times(node: Node, transfers: Executions) -> NodeTimes:
    execution = np.array(node.execution, dtype=np.int64)
    return NodeTimes(
        item_start=np.array(node.item_start),
        item_end=np.array(node.item_end),
        transfer_start=transfers.start[execution],
        message_end=transfers.end[execution],
        arrived_last=transfers.last[execution],
        execution=execution,
        rate=None if node.chip is None else node.chip.rate(node.index),
    )
