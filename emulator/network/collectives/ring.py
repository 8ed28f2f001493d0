"""Ring algorithms: everyone passes chunks to the next member.

All-gather and reduce-scatter take ``(n-1)a + (n-1)/n S/B``, all-reduce (reduce-scatter, then all-gather) twice that
(Thakur, Rabenseifner, Gropp 2005). Sends are pipelined, so the latency of a round over equally fast edges is the
largest sum of n-1 consecutive ones (of an all-reduce 2(n-1)); a slow edge hides some of it
(:mod:`emulator.network.waits`).

A group spread over servers runs several rings side by side, as NCCL's channels: each enters a server at a different
member and leaves it at that one's neighbour, so that every network card carries its part of the data. Servers are
visited forwards and backwards in turn, which keeps a crossing between cards of the same place (rail).

Broadcast and reduce run along one ring from (to) the root, cut into thin pieces that follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.network.collectives.phase import Phase
from emulator.network.collectives.schedule import Case, Step
from emulator.network.maxmin import Floats, Ints

# Pieces per hop of a broadcast. The phase is the limit of thin pieces; with these, filling the pipe adds 1/32 at most.
PIECES_PER_HOP = 32


def pass_around(rings: Ints, owned: Ints, *, reduce: bool) -> Iterator[Step]:
    """All-gather (or reduce-scatter) on several rings at once, each a channel, m-1 steps.

    ``rings`` i64[r, m]: members in ring order. ``owned`` i64[r, m, w]: the w chunks that each place has at the start
    (all-gather) or at the end (reduce-scatter).
    """
    places, width = rings.shape[1], owned.shape[2]
    src = np.repeat(rings.ravel(), width)
    dst = np.repeat(np.roll(rings, -1, axis=1).ravel(), width)
    channel = np.repeat(np.arange(len(rings)), places * width)
    for step in range(places - 1):
        yield Step(src, dst, np.roll(owned, step + reduce, axis=1).ravel(), reduce, channel)


def ring_phase(rings: Ints, fraction: float | Floats, rounds: int = 1) -> tuple[Phase, ...]:
    """Several rings side by side as one phase: in all rounds ``fraction`` of S crosses every edge (or f64[r, m])."""
    places = rings.shape[1]
    if places == 1:
        return ()
    flows = np.broadcast_to(fraction, rings.shape).ravel()
    return (Phase(rings.ravel(), np.roll(rings, -1, axis=1).ravel(), flows, places, rounds * (places - 1)),)


def channels(case: Case) -> Ints:
    """i64[c, n]: the rings, one per member of the smallest server; a single one without servers to cross."""
    if not case.several_servers:
        return case.order[np.newaxis, :]
    if case.table is not None:
        places = np.arange(case.table.shape[1])
        turned = case.table[:, (places + places[:, np.newaxis]) % len(places)].transpose(
            1, 0, 2
        )  # [ring, server, place]
        turned[:, 1::2] = turned[:, 1::2, ::-1]
        return turned.reshape(len(places), -1)
    rings = []
    for channel in range(min(len(server) for server in case.servers)):
        walk = []
        for number, server in enumerate(case.servers):
            turned = np.roll(server, -(channel % len(server)))
            walk.append(turned[::-1] if number % 2 else turned)
        rings.append(np.concatenate(walk))
    return np.stack(rings)


def chunks(case: Case) -> Floats:
    """Each member's part cut once per ring."""
    count = len(channels(case))
    return np.repeat(case.parts / count, count)


def _owned(rings: Ints) -> Ints:
    count = len(rings)
    return (rings * count + np.arange(count)[:, np.newaxis])[:, :, np.newaxis]


def all_gather(case: Case) -> Iterator[Step]:
    """The chunks of member i start there and go once around."""
    rings = channels(case)
    yield from pass_around(rings, _owned(rings), reduce=False)


def reduce_scatter(case: Case) -> Iterator[Step]:
    """The chunks of member i go once around, are added to at every member, and end there."""
    rings = channels(case)
    yield from pass_around(rings, _owned(rings), reduce=True)


def all_reduce(case: Case) -> Iterator[Step]:
    """Reduce-scatter, then all-gather."""
    yield from reduce_scatter(case)
    yield from all_gather(case)


def all_gather_phases(case: Case) -> tuple[Phase, ...]:
    """Every edge carries all but the next member's part."""
    rings = channels(case)
    return ring_phase(rings, (case.parts.sum() - case.parts[np.roll(rings, -1, axis=1)]) / len(rings))


def reduce_scatter_phases(case: Case) -> tuple[Phase, ...]:
    """Every edge carries all but its own member's part."""
    rings = channels(case)
    return ring_phase(rings, (case.parts.sum() - case.parts[rings]) / len(rings))


def all_reduce_phases(case: Case) -> tuple[Phase, ...]:
    """Twice around."""
    rings = channels(case)
    return ring_phase(rings, 2 * (case.n - 1) / case.n / len(rings), rounds=2)


def pieces(case: Case) -> Floats:
    """Chunks of a broadcast or reduce along the ring."""
    count = PIECES_PER_HOP * max(case.n - 1, 1)
    return np.full(count, 1.0 / count)


def _along(case: Case, chain: Ints, *, reduce: bool) -> Iterator[Step]:
    hops, count = case.n - 1, len(pieces(case))
    for step in range(count + hops - 1 if hops else 0):
        hop = np.arange(max(0, step - count + 1), min(hops, step + 1))
        yield Step(chain[hop], chain[hop + 1], step - hop, reduce)


def broadcast(case: Case) -> Iterator[Step]:
    """Pieces run from the root along the ring, one behind the other."""
    yield from _along(case, case.order_from_root, reduce=False)


def reduce(case: Case) -> Iterator[Step]:
    """Pieces run along the ring to the root and are added to at every member."""
    yield from _along(case, case.order_from_root[::-1], reduce=True)


def _chain_phase(chain: Ints) -> tuple[Phase, ...]:
    hops = len(chain) - 1
    every = np.arange(hops)[np.newaxis]
    return (Phase(chain[:-1], chain[1:], np.ones(hops), chains=(every,)),) if hops else ()


def broadcast_phases(case: Case) -> tuple[Phase, ...]:
    """S over every hop, latencies of all hops in a row."""
    return _chain_phase(case.order_from_root)


def reduce_phases(case: Case) -> tuple[Phase, ...]:
    """S over every hop, latencies of all hops in a row."""
    return _chain_phase(case.order_from_root[::-1])
