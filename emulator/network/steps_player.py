"""A collective played chunk by chunk: every message of every step is a flow of its own.

The reference for the phases, and the mode for traffic that phases do not fit. There is no barrier between steps: a
message goes out when all it carries has arrived and when the sender's messages of earlier steps in the same channel
have left. It has left when its last byte has; it has arrived one path latency later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from simpy.events import Event

from emulator.network.bind import Fabric
from emulator.network.collectives import Step
from emulator.network.fluid import Network, Route
from emulator.network.maxmin import Floats, Ints


@dataclass(eq=False)
class _Message:
    """Bytes from one member to another, what holds it back, and whom its leaving and its arrival set free."""

    src: int
    dst: int
    amount: float
    holds: int = 0
    on_left: list[_Message] = field(default_factory=list)
    on_arrived: list[_Message] = field(default_factory=list)


def play(
    network: Network,
    fabric: Fabric,
    members: Ints,
    steps: Iterable[Step],
    chunk_bytes: Floats,
    done: Callable[[], None],
) -> None:
    """Start the steps of one collective now; ``done()`` is called when the last message has arrived.

    ``members`` i64[n]: accelerator of each member. ``chunk_bytes`` f64[C]: bytes of each chunk the steps name.
    """
    messages = _messages(steps, chunk_bytes)
    if not messages:
        network.clock.call_at(network.clock.now, lambda _: done())
        return
    _Player(network, _routes(network, fabric, members, messages), len(messages), done).go(messages)


class _Player:
    """Sets messages going as what they wait for comes true."""

    def __init__(
        self, network: Network, routes: dict[tuple[int, int], tuple[Route, float]], left: int, done: Callable[[], None]
    ) -> None:
        self.network = network
        self.routes = routes
        self.left = left
        self.done = done

    def go(self, messages: Iterable[_Message]) -> None:
        """Send those messages that nothing holds back."""
        for message in [message for message in messages if message.holds == 0]:
            self._send(message)

    def _release(self, messages: Iterable[_Message]) -> None:
        for message in messages:
            message.holds -= 1
            if message.holds == 0:
                self._send(message)

    def _send(self, message: _Message) -> None:
        route, latency = self.routes[message.src, message.dst]
        clock = self.network.clock

        def arrived(_: Event) -> None:
            self.left -= 1
            self._release(message.on_arrived)
            if self.left == 0:
                self.done()

        def left() -> None:
            clock.call_at(clock.now + latency, arrived)
            self._release(message.on_left)

        self.network.start(route, message.amount, left)


def _messages(steps: Iterable[Step], chunk_bytes: Floats) -> list[_Message]:
    """All messages with their true dependencies: data of earlier steps, and the sender's turn in its channel."""
    messages: list[_Message] = []
    arriving: dict[tuple[int, int], list[_Message]] = {}  # (member, chunk) -> messages of earlier steps that bring it
    last_sent: dict[tuple[int, int], list[_Message]] = {}  # (member, channel) -> its messages of the last such step
    for step in steps:
        channel = np.zeros_like(step.src) if step.channel is None else step.channel
        carried: dict[tuple[int, int, int], list[int]] = {}
        columns = (step.src.tolist(), step.dst.tolist(), channel.tolist(), step.chunk.tolist())
        for src, dst, through, chunk in zip(*columns, strict=True):
            carried.setdefault((src, dst, through), []).append(chunk)
        sent: dict[tuple[int, int], list[_Message]] = {}
        brought: list[tuple[tuple[int, int], _Message]] = []
        for (src, dst, through), chunks in carried.items():
            message = _Message(src, dst, float(chunk_bytes[chunks].sum()))
            needed = {earlier: None for chunk in chunks for earlier in arriving.get((src, chunk), ())}
            for earlier in needed:
                earlier.on_arrived.append(message)
            turn = last_sent.get((src, through), [])
            for earlier in turn:
                earlier.on_left.append(message)
            message.holds = len(needed) + len(turn)
            sent.setdefault((src, through), []).append(message)
            brought += [((dst, chunk), message) for chunk in chunks]
            messages.append(message)
        for place, message in brought:  # only now: what a step brings, it cannot send
            arriving.setdefault(place, []).append(message)
        last_sent.update(sent)
    return messages


def _routes(
    network: Network, fabric: Fabric, members: Ints, messages: Iterable[_Message]
) -> dict[tuple[int, int], tuple[Route, float]]:
    """Route and latency (s) of each pair of members that has a message."""
    pairs = list({(message.src, message.dst): None for message in messages})
    ends = np.asarray(members)[np.array(pairs)]
    paths = fabric.route(ends[:, 0], ends[:, 1])
    found = {}
    for i, pair in enumerate(pairs):
        part = slice(int(paths.ptr[i]), int(paths.ptr[i + 1]))
        route = network.route(paths.link[part].tolist(), paths.share[part].tolist())
        found[pair] = (route, float(paths.latency[i]))
    return found
