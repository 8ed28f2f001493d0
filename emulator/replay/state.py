"""The state of a replay: nodes with their queues, groups with who has arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from emulator.network.clock import Clock
from emulator.network.fluid import Route
from emulator.replay.chip import Chip
from emulator.replay.programs import Items
from emulator.replay.variants import Variant


class Transfers(Protocol):
    """What runs the transfers of groups (:class:`emulator.replay.engine.Engine`) and keeps account of them."""

    clock: Clock
    transfer_start: list[float]
    transfer_end: list[float]
    transfer_group: list[int]
    transfer_use: list[int]
    transfer_last: list[int]

    def transfer(
        self, execution: int, phases: tuple[ReadyPhase, ...], at: int, members: list[tuple[Node, int, int]]
    ) -> None: ...


@dataclass(frozen=True)
class ReadyPhase:
    """A phase of a group, ready to run."""

    route: Route
    amount: float
    latency: float


class Group:
    """One group while the replay runs: who has arrived for the collective it is at.

    ``share``: the part of the chip that its kernels take from what computes.
    """

    __slots__ = ("arrived", "engine", "index", "need", "share", "uses")

    def __init__(
        self, engine: Transfers, index: int, need: int, share: float, uses: dict[int, tuple[ReadyPhase, ...]]
    ) -> None:
        self.engine = engine
        self.index = index
        self.need = need
        self.share = share
        self.uses = uses
        self.arrived: list[tuple[Node, int, int]] = []

    def arrive(self, node: Node, item: int, message: int, use: int) -> None:
        """A member's message is posted; the last one starts the transfer."""
        arrived = self.arrived
        arrived.append((node, item, message))
        if len(arrived) < self.need:
            return
        self.arrived = []
        engine = self.engine
        now = engine.clock._now
        execution = len(engine.transfer_start)
        for member, _, posted in arrived:
            member.execution[posted] = execution
        engine.transfer_start.append(now)
        engine.transfer_end.append(now)
        engine.transfer_group.append(self.index)
        engine.transfer_use.append(use)
        engine.transfer_last.append(node.index)
        engine.transfer(execution, self.uses[use], 0, arrived)


class SeveralAtOnce(Group):
    """A group to which one batch may post several messages: a second one is for the next exchange, not for this."""

    __slots__ = ("later", "lines")

    def __init__(
        self, engine: Transfers, index: int, need: int, share: float, uses: dict[int, tuple[ReadyPhase, ...]]
    ) -> None:
        super().__init__(engine, index, need, share, uses)
        self.lines: set[tuple[int, int]] = set()  # who has arrived: node and slot
        self.later: list[tuple[Node, int, int, int]] = []

    def arrive(self, node: Node, item: int, message: int, use: int) -> None:
        """A member's message is posted, or kept until the exchange it belongs to."""
        line = (node.index, node.items.message_slot[message])
        if line in self.lines:
            self.later.append((node, item, message, use))
            return
        self.lines.add(line)
        if len(self.lines) < self.need:
            self.arrived.append((node, item, message))
            return
        self.lines.clear()
        super().arrive(node, item, message, use)
        later, self.later = self.later, []
        for waiting in later:
            self.arrive(*waiting)


class Node:
    """One rank, or a class of ranks, while the replay runs. ``chip``: None where nothing slows what computes."""

    __slots__ = (
        "chip",
        "deps",
        "done",
        "epoch",
        "epoch_start",
        "execution",
        "groups",
        "host_holds",
        "index",
        "issue",
        "item_end",
        "item_start",
        "items",
        "messages",
        "open_messages",
        "position",
        "queue_items",
        "seconds",
        "started",
        "sync_done",
        "use",
        "waiting",
    )

    def __init__(
        self, index: int, items: Items, variant: Variant, groups: list[Group], chip: Chip | None = None
    ) -> None:
        count, messages = len(items), len(items.messages)
        self.index = index
        self.chip = chip
        self.items = items
        self.seconds = variant.item_seconds
        self.issue = variant.item_issue
        self.use = variant.message_use
        self.groups = [groups[slot] for slot in items.message_slot]
        self.queue_items = items.queue_items
        self.deps = items.deps
        self.messages = items.item_messages
        self.host_holds = variant.item_issue is not None or bool(items.syncs)
        self.position = [0] * len(items.queues)
        self.started = bytearray(count)
        self.done = bytearray(count)
        self.waiting: dict[int, list[int]] = {}
        self.epoch = 0
        self.epoch_start = 0.0
        self.sync_done: Callable[[], None] | None = None
        self.open_messages = [len(m) for m in items.item_messages]
        self.item_start = [np.nan] * count
        self.item_end = [np.nan] * count
        self.execution = [-1] * messages  # which of all transfers each message took part in
