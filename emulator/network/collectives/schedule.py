"""What a collective algorithm is made of: steps, chunks, phases.

There is one definition per algorithm, its *steps*. Everything else follows from them: played as flows they are the
reference simulation, executed on tensors they prove the arithmetic, summed up they are the *phases* that the engine
runs.

**Memory model of the steps.** The data of a collective is cut into chunks with ids that mean the same on every member
(chunk ``i * n + j`` of an all-to-all is what member ``i`` has for member ``j``). Each member owns a slot per chunk. An
entry of a step sends the sender's slot, *as it was before the step*, to the same slot of the receiver, which either
stores it (copy) or adds it to what it has (reduce). Entries are in the order in which a receiver adds. Entries of one
step with the same sender and receiver are one message.

**Sizes.** ``S`` is the input of an all-reduce, the output of an all-gather, the input of a reduce-scatter, the input
of one member of an all-to-all (the largest one, if they differ), and the whole buffer of all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.errors import InputError
from emulator.network.maxmin import Floats, Ints

# Where every pair of members is a flow: 4 million of them are as many as is sensible to list.
ALL_PAIRS_LIMIT = 2048
# Up to here such an algorithm is offered although there are others (real libraries stop earlier: buffers per peer).
OFFERED_PAIRS_LIMIT = 128


@dataclass(frozen=True, eq=False)
class Case:
    """Who takes part: ``n`` members, the ``root`` (an index), each member's domain, the splits of an all-to-all.

    ``domains`` i64[n] are labels of the server (or tray) each member sits in; None means no such structure.
    ``splits`` f64[n, n] are bytes from member (row) to member (column); None means equal parts.
    """

    n: int
    root: int = 0
    domains: Ints | None = None
    splits: Floats | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"a group needs at least one member, not {self.n}")
        if not 0 <= self.root < self.n:
            raise InputError(f"root {self.root} is not a member of a group of {self.n}")
        if self.domains is not None and self.domains.shape != (self.n,):
            raise InputError(f"{self.domains.size} domains given for {self.n} members")
        if self.splits is not None:
            if self.splits.shape != (self.n, self.n):
                raise InputError(f"splits must be {self.n} x {self.n}, not {' x '.join(map(str, self.splits.shape))}")
            if not np.all((self.splits >= 0) & np.isfinite(self.splits)):
                raise InputError("splits must be finite and not negative")

    @cached_property
    def table(self) -> Ints | None:
        """i64[k, g]: members by domain and place in it; None unless every domain has the same number of members.

        Domains and places are in order of first appearance in the group.
        """
        if self.domains is None:
            return None
        _, first, which, count = np.unique(self.domains, return_index=True, return_inverse=True, return_counts=True)
        if len(set(count.tolist())) != 1:
            return None
        order = np.argsort(first[which], kind="stable")
        return order.reshape(len(count), -1)

    @property
    def two_levels(self) -> bool:
        """Whether there are several domains with several members each, equally many in all."""
        return self.table is not None and self.table.shape[0] > 1 and self.table.shape[1] > 1

    @cached_property
    def order(self) -> Ints:
        """i64[n]: the members as a ring visits them, one domain after the other, group order within each."""
        if self.domains is None:
            return np.arange(self.n)
        _, first, which = np.unique(self.domains, return_index=True, return_inverse=True)
        return np.argsort(first[which], kind="stable")

    @property
    def order_from_root(self) -> Ints:
        """:attr:`order`, turned so that it begins at the root."""
        return np.roll(self.order, -int(np.flatnonzero(self.order == self.root)[0]))


@dataclass(frozen=True, eq=False)
class Step:
    """Transfers that need nothing from each other. ``src``, ``dst``, ``chunk`` i64[e]: members and what they pass."""

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: bool = False


@dataclass(frozen=True, eq=False)
class Phase:
    """Flows that run as one: they start together, keep pace with the slowest, and end together.

    ``src``, ``dst`` i64[f] members; ``fraction`` f64[f] bytes of each flow as a part of S. The latency of a phase is
    ``times`` x the largest sum of ``window`` consecutive flows' latencies, where flows come in closed rings of
    ``block`` flows each (``window = block = 1``: the slowest flow).
    """

    src: Ints
    dst: Ints
    fraction: Floats
    window: int = 1
    block: int = 1
    times: int = 1


def equal_chunks(case: Case) -> Floats:
    """One chunk per member, equal parts of S."""
    return np.full(case.n, 1.0 / case.n)


def whole(_: Case) -> Floats:
    """The buffer in one piece."""
    return np.ones(1)


def nothing(_: Case) -> Floats:
    """One chunk without bytes: messages that only say "I am here"."""
    return np.zeros(1)


def check_all_pairs(n: int) -> None:
    """Raise InputError if the pairs of ``n`` members are too many to list."""
    if n > ALL_PAIRS_LIMIT:
        raise InputError(f"an exchange between all pairs of {n} members is too large (limit {ALL_PAIRS_LIMIT})")


def pair_chunks(case: Case) -> Floats:
    """f64[n * n]: what each member has for each, as a part of the largest input."""
    check_all_pairs(case.n)
    if case.splits is None:
        return np.full(case.n * case.n, 1.0 / case.n)
    largest = float(case.splits.sum(axis=1).max())
    return case.splits.ravel() / largest if largest > 0 else np.zeros(case.n * case.n)


def chunk_elements(fractions: Floats, elements: int) -> Ints:
    """i64[C]: sizes of the chunks, in elements, of a buffer of S = ``elements``: as equal as whole elements allow."""
    edges = np.rint(np.concatenate([[0.0], np.cumsum(fractions)]) * elements).astype(np.int64)
    sizes: Ints = np.diff(edges)
    return sizes


def phases_of(steps: Iterable[Step], n: int, chunks: Floats) -> tuple[Phase, ...]:
    """One phase per step: right for every algorithm in which members wait for each other between steps."""
    phases = []
    for step in steps:
        pair, which = np.unique(step.src * n + step.dst, return_inverse=True)
        fraction = np.bincount(which, chunks[step.chunk], len(pair)).astype(np.float64)
        phases.append(Phase(pair // n, pair % n, fraction))
    return tuple(phases)
