"""Phases: the steps of an algorithm summed up to flows that run as one. This is what the engine simulates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.network.collectives.schedule import Step, check_all_pairs
from emulator.network.maxmin import Floats, Ints

# Which links of its path a flow uses (``Phase.part``): for flows that a switch on the way adds up or copies.
WHOLE, FIRST, LAST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Phase:
    """Flows that run as one: they start together, keep pace with the slowest, and end together.

    ``src``, ``dst`` i64[f] members; ``fraction`` f64[f] bytes of each flow as a part of S.

    **Latency** is that of the slowest flow. With ``ring`` above 1 flows come in closed rings of so many, and are
    ``messages`` each that wait for the one before them and for the one behind (:mod:`emulator.network.waits`): on an
    idle network of equal edges the largest sum of ``messages`` consecutive latencies. With ``chains`` it is their sum
    instead: each i64[p, d] lists p chains of flow numbers (-1: none), of which the slowest counts.

    **In the network.** Flows with the same number in ``tree`` (i64[f], -1: none) carry the same data, or data that
    switches add up: a link that several of them use carries it once. ``part`` (i64[f]) is WHOLE, FIRST (only the link
    out of the source) or LAST (only the link into the destination).
    """

    src: Ints
    dst: Ints
    fraction: Floats
    ring: int = 1
    messages: int = 1
    chains: tuple[Ints, ...] = ()
    tree: Ints | None = None
    part: Ints | None = None


@dataclass(frozen=True)
class AllPairs:
    """Every member sends ``each`` x S to every other, as one phase. A fabric may know the sum without a list of flows.

    The lists (``src``, ``dst``, ``fraction``: receivers in order, senders in order for each) are made when asked for.
    """

    n: int
    each: float

    @cached_property
    def listed(self) -> Phase:
        """The same with all flows listed. Raises InputError if they are too many."""
        src, dst = pairs(self.n)
        return Phase(src, dst, np.full(len(src), self.each))

    @property
    def src(self) -> Ints:
        """i64[n(n-1)]: senders."""
        return self.listed.src

    @property
    def dst(self) -> Ints:
        """i64[n(n-1)]: receivers."""
        return self.listed.dst

    @property
    def fraction(self) -> Floats:
        """f64[n(n-1)]: bytes of each flow as a part of S."""
        return self.listed.fraction


AnyPhase = Phase | AllPairs


def pairs(n: int) -> tuple[Ints, Ints]:
    """All ordered pairs of different members, receivers in order, senders in order for each."""
    check_all_pairs(n)
    dst, src = np.divmod(np.arange(n * n), n)
    other = src != dst
    return src[other], dst[other]


def phases_of(steps: Iterable[Step], n: int, chunks: Floats) -> tuple[Phase, ...]:
    """One phase per step: right for every algorithm in which members wait for each other between steps."""
    phases = []
    for step in steps:
        pair, which = np.unique(step.src * n + step.dst, return_inverse=True)
        fraction = np.bincount(which, chunks[step.chunk], len(pair)).astype(np.float64)
        phases.append(Phase(pair // n, pair % n, fraction))
    return tuple(phases)
