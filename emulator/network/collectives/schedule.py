"""What a collective algorithm is made of: who takes part, steps, chunks.

There is one definition per algorithm, its *steps*. Everything else follows from them: played as flows they are the
reference simulation, executed on tensors they prove the arithmetic, summed up they are the *phases* (:mod:`.phase`)
that the engine runs.

**Memory model of the steps.** The data of a collective is cut into chunks with ids that mean the same on every member.
Where each member has a part of its own, ids count members first (``w`` chunks per member: member m has ``m * w`` to
``m * w + w - 1``; of an all-to-all, pair ``i * n + j`` is what member ``i`` has for member ``j``). Each member owns a
slot per chunk. An entry of a step sends the sender's slot, *as it was before the step*, to the same slot of the
receiver, which either stores it (copy) or adds it to what it has (reduce). Entries are in the order in which a receiver
adds. Entries of one step with the same sender, receiver and channel are one message.

**Channels.** What a member sends in one channel leaves in the order of the steps, one step after the other; channels do
not wait for each other, as those of NCCL.

**Sizes.** ``S`` is the input of an all-reduce, the output of an all-gather, the input of a reduce-scatter, the input
of one member of an all-to-all (the largest one, if they differ), and the whole buffer of all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.errors import InputError
from emulator.network.maxmin import Floats, Ints

# Where every pair of members is a flow: 4 million of them are as many as is sensible to list.
ALL_PAIRS_LIMIT = 2048


@dataclass(frozen=True, eq=False)
class Grid:
    """Members on the crossing points of a torus or mesh: ``at`` i64[shape] is the member at each place.

    ``closed`` says of each axis whether its ends are neighbours too. Axes of length 1 are left out.
    """

    at: Ints
    closed: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Members along each axis."""
        return self.at.shape


@dataclass(frozen=True, eq=False)
class Case:
    """Who takes part: ``n`` members, the ``root`` (an index), where members sit, uneven parts.

    ``domains`` i64[n] are labels of the server (or tray) each member sits in; None means no such structure. ``grid``
    places them on a torus. ``splits``: f64[n, n] bytes from member (row) to member (column) of an all-to-all, or
    f64[n] bytes of each member's part (all-gather, reduce-scatter, gather, scatter); None means equal parts.
    ``copies``: to how many members of another server the same data of an all-to-all goes, on average (MoE dispatch).
    """

    n: int
    root: int = 0
    domains: Ints | None = None
    splits: Floats | None = None
    grid: Grid | None = None
    copies: float = 1.0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"a group needs at least one member, not {self.n}")
        if not 0 <= self.root < self.n:
            raise InputError(f"root {self.root} is not a member of a group of {self.n}")
        if self.domains is not None and self.domains.shape != (self.n,):
            raise InputError(f"{self.domains.size} domains given for {self.n} members")
        if self.splits is not None:
            if self.splits.shape not in ((self.n, self.n), (self.n,)):
                raise InputError(f"splits must be {self.n} x {self.n}, not {' x '.join(map(str, self.splits.shape))}")
            if not np.all((self.splits >= 0) & np.isfinite(self.splits)):
                raise InputError("splits must be finite and not negative")
        if not 1 <= self.copies <= self.n:
            raise InputError(f"copies per server must be 1 to {self.n}, not {self.copies:g}")

    @cached_property
    def server_of(self) -> Ints:
        """i64[n]: the domain of each member, numbered in order of first appearance (all 0 if there are none)."""
        if self.domains is None:
            return np.zeros(self.n, dtype=np.int64)
        _, first, which = np.unique(self.domains, return_index=True, return_inverse=True)
        number = np.empty(len(first), dtype=np.int64)
        number[np.argsort(first)] = np.arange(len(first))
        return number[which.ravel()]

    @cached_property
    def server_sizes(self) -> Ints:
        """Members of each domain. Large groups ask for this, not for the lists of members."""
        return np.bincount(self.server_of)

    @cached_property
    def servers(self) -> tuple[Ints, ...]:
        """The members of each domain in group order, domains in order of first appearance; one if there are none."""
        return tuple(np.split(self.order, np.cumsum(self.server_sizes)[:-1]))

    @cached_property
    def table(self) -> Ints | None:
        """i64[k, g]: members by domain and place in it; None unless every domain has the same number of members."""
        if self.domains is None or np.ptp(self.server_sizes):
            return None
        return self.order.reshape(len(self.server_sizes), -1)

    @property
    def two_levels(self) -> bool:
        """Whether there are several domains with several members each, equally many in all."""
        sizes = self.server_sizes
        return self.domains is not None and len(sizes) > 1 and sizes[0] > 1 and not np.ptp(sizes)

    @property
    def several_servers(self) -> bool:
        """Whether there are several domains and one at least has several members."""
        return 1 < len(self.server_sizes) < self.n

    @cached_property
    def order(self) -> Ints:
        """i64[n]: the members as a ring visits them, one domain after the other, group order within each."""
        return np.argsort(self.server_of, kind="stable")

    @property
    def order_from_root(self) -> Ints:
        """:attr:`order`, turned so that it begins at the root."""
        return np.roll(self.order, -int(np.flatnonzero(self.order == self.root)[0]))

    @cached_property
    def parts(self) -> Floats:
        """f64[n]: each member's part of S where every member has one."""
        if self.splits is None or self.splits.ndim == 2:
            return np.full(self.n, 1.0 / self.n)
        total = float(self.splits.sum())
        return self.splits / total if total > 0 else np.zeros(self.n)


@dataclass(frozen=True, eq=False)
class Step:
    """Transfers that need nothing from each other. ``src``, ``dst``, ``chunk`` i64[e]: members and what they pass.

    ``channel`` i64[e]: the channel each goes through (None: there is one).
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: bool = False
    channel: Ints | None = None


def member_chunks(case: Case) -> Floats:
    """One chunk per member."""
    return case.parts


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


def in_pieces(edges: list[tuple[int, int, int, int, bool, int]], pieces: int) -> Iterator[Step]:
    """Edges that pieces of data cross one behind the other, as steps.

    ``edges``: (step of the first piece, source, destination, first chunk, whether the receiver adds, channel). Piece p
    is chunk ``first + p`` and crosses p steps later. Additions of a step come before its copies.
    """
    table = np.array(edges, dtype=np.int64).reshape(-1, 6)
    table = table[np.argsort(table[:, 0], kind="stable")]
    last = int(table[-1, 0]) + pieces if len(table) else 0
    for step in range(last):
        active = table[(table[:, 0] <= step) & (step < table[:, 0] + pieces)]
        for reduce in (True, False):
            some = active[active[:, 4] == reduce]
            if len(some):
                yield Step(some[:, 1], some[:, 2], some[:, 3] + step - some[:, 0], reduce, some[:, 5])
