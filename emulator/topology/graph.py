"""A topology as arrays: nodes, directed links, and the routes that flows take.

Nodes ``0 .. accelerators-1`` are accelerators, the rest are switches. A link is one *direction* of a bundle of parallel
cables between two nodes; nothing is a Python object per link, so that a hundred thousand links cost nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.rows import offsets, owners
from emulator.topology.tuning import Tuning

_MOST_LINKS = 1 << 25  # of a level: 2 GB of arrays
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Routes:
    """The links of F flows in compressed rows: flow i uses entries ``ptr[i]:ptr[i+1]`` of ``link`` and ``share``.

    ``share`` is the fraction of the flow's bytes that the link carries. ``latency`` (seconds) is the sum over the links
    of one path, the slowest if there are several: a message has come when its last part has.
    """

    ptr: Ints
    link: Ints
    share: Floats
    latency: Floats


class Router(Protocol):
    """Turns pairs of different accelerators into routes; one class per fabric."""

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``; no entry may have ``src == dst``."""


class NodeNames(Sequence[str]):
    """Names made when asked for: groups of nodes, each a prefix and a shape (``("leaf", (4, 8))`` gives leaf3.7)."""

    def __init__(self, groups: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        self.groups = tuple(groups)
        self._starts = [0]
        for _, shape in self.groups:
            self._starts.append(self._starts[-1] + prod(shape))

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        group = bisect_right(self._starts, index) - 1
        prefix, shape = self.groups[group]
        return prefix + ".".join(str(i) for i in np.unravel_index(index - self._starts[group], shape))


@dataclass(frozen=True)
class Facts:
    """What a builder knows in closed form of what it built (None: not known, see ``show.describe``).

    ``diameter`` is in links between the two farthest accelerators, ``bisection`` in bytes/s per direction across
    the cheapest cut into two halves that the builder knows, ``oversubscription`` per tier: capacity below over above.
    ``nonblocking``: no traffic can fill a link that ends at no accelerator, whatever the accelerators send, and no
    route passes an accelerator; so only accelerators' own links ever limit a rate (False: not so, or not known).
    """

    diameter: int | None = None
    bisection: float | None = None
    bisection_note: str = ""
    oversubscription: dict[str, float] = field(default_factory=dict)
    nonblocking: bool = False


@dataclass(frozen=True, eq=False)
class Topology:
    """What a job runs on.

    Per link (arrays of length L): ``link_src``, ``link_dst`` (nodes), ``capacity`` (bytes/s in this direction, all
    cables together, efficiency included), ``latency`` (s), ``link_level`` (index into ``level_names``), ``cables``
    (parallel cables in the bundle). ``switches[i]`` is how many switches node ``accelerators + i`` stands for: equal
    switches that every flow uses in equal parts may be one node. ``domain[a]`` is the index of the innermost group
    (server, tray) of accelerator a; hierarchical collectives split there. ``power`` (W) is that of all accelerators
    with what ``power_note`` says. ``in_network``: what switches can do (``nvls``, ``sharp``). ``tuning``: how the GPUs'
    library behaves; None for other fabrics. ``links_of_key``: the levels of links that a setting (``--set``) of
    their bandwidth, efficiency or latency speaks of, if it changed no more than that.
    """

    name: str
    built: str
    accelerators: int
    node_names: Sequence[str]
    link_src: Ints
    link_dst: Ints
    capacity: Floats
    latency: Floats
    link_level: Ints
    level_names: tuple[str, ...]
    cables: Ints
    switches: Ints
    domain: Ints
    routing: str
    router: Router
    forwards: bool = False
    facts: Facts = field(default_factory=Facts)
    device: str | None = None
    sources: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    power: float | None = None
    power_note: str = ""
    in_network: tuple[str, ...] = ()
    tuning: Tuning | None = None
    links_of_key: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Accelerators and switch nodes."""
        return len(self.node_names)

    @property
    def links(self) -> int:
        """Directed links (bundles)."""
        return len(self.link_src)

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]`` (accelerators). A flow to itself uses no link and takes no time.

        Raises IndexError for a number that is no accelerator.
        """
        src = np.atleast_1d(np.asarray(src, dtype=np.int64))
        dst = np.atleast_1d(np.asarray(dst, dtype=np.int64))
        if len(src) and (min(src.min(), dst.min()) < 0 or max(src.max(), dst.max()) >= self.accelerators):
            raise IndexError(f"accelerators are numbered 0 to {self.accelerators - 1}")
        moves = src != dst
        if len(src) and moves.all():
            return self.router.route(src, dst)
        if not moves.any():
            return assemble(len(src), [], np.zeros(len(src)))
        some = self.router.route(src[moves], dst[moves])
        counts = np.zeros(len(src), dtype=np.int64)
        counts[moves] = np.diff(some.ptr)
        latency = np.zeros(len(src))
        latency[moves] = some.latency
        return Routes(offsets(counts), some.link, some.share, latency)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Accelerators along each axis of a torus or mesh, numbered row by row; empty for other fabrics."""
        lattice = getattr(self.router, "lattice", None)
        return () if lattice is None or lattice.twist else tuple(lattice.shape)

    @property
    def grid_closed(self) -> tuple[bool, ...]:
        """Which axes of the grid have neighbouring ends."""
        return tuple(self.router.lattice.closed) if self.grid_shape else ()  # type: ignore[attr-defined]

    def all_pairs(self, members: Ints) -> tuple[Ints, Floats, float] | None:
        """Links, flows on each (shares summed) and slowest latency (s) of a flow between every two of ``members``.

        None where the fabric has no structure to sum over: list the pairs.
        """
        from emulator.topology.allpairs import all_pairs  # noqa: PLC0415  (it knows the routers, which know this module)

        return all_pairs(self.router, members)

    def link_name(self, link: int) -> str:
        """``a>b`` for the link from node a to node b."""
        return f"{self.node_names[int(self.link_src[link])]}>{self.node_names[int(self.link_dst[link])]}"

    def with_capacity(self, links: Ints, factor: float) -> Topology:
        """The same topology with the capacity of some links multiplied (a degraded or a faster cable)."""
        capacity = self.capacity.copy()
        capacity[links] *= factor
        return replace(self, capacity=capacity)


def check_size(links: int, name: str) -> None:
    """Refuse a level of so many directed links before memory runs out. Raises InputError."""
    if links > _MOST_LINKS:
        raise InputError(
            f"{links:,} links are too many to build, {_MOST_LINKS:,} at most", place=f"levels.{name}",
            remedy="make it smaller, or leave the size to the job",
        )  # fmt: skip


def flow_of(routes: Routes) -> Ints:
    """The flow of every entry of ``routes.link``."""
    return owners(routes.ptr)


def merge(routes: Routes, links: int) -> Routes:
    """The same routes with one entry per flow and link, links ascending; ``links`` is how many there are."""
    key, which = np.unique(flow_of(routes) * links + routes.link, return_inverse=True)
    share = np.bincount(which.ravel(), routes.share, len(key)).astype(np.float64)
    flow, link = np.divmod(key, links)
    return Routes(offsets(np.bincount(flow, minlength=len(routes.ptr) - 1)), link, share, routes.latency)


def crossing(columns: Mapping[str, NDArray[np.generic]], side: NDArray[np.bool_]) -> float:
    """Bytes/s of the links out of the nodes marked in ``side``; ``columns`` as ``LinkTable.columns`` gives them."""
    out = side[columns["link_src"].astype(np.int64)] & ~side[columns["link_dst"].astype(np.int64)]
    return float(columns["capacity"][out].astype(np.float64).sum())


def assemble(flows: int, parts: Sequence[tuple[Ints, Ints, Floats]], latency: Floats) -> Routes:
    """Routes from parts in path order, each ``(flow, link, share)`` arrays of equal length."""
    if not parts:
        return Routes(np.zeros(flows + 1, dtype=np.int64), np.empty(0, np.int64), np.empty(0), latency)
    flow, link, share = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(flow, kind="stable")
    ptr = offsets(np.bincount(flow, minlength=flows))
    return Routes(ptr, link[order], share[order], latency)


class LinkTable:
    """Collects links while a fabric is being built: arrays go in, both directions of each cable come out as ids.

    What links of one call share is kept once, and their columns are only filled when asked for.
    """

    def __init__(self) -> None:
        self.count = 0
        self.level_names: list[str] = []
        self._parts: list[tuple[Ints, Ints, float, float, int, int]] = []

    def add(self, level: str, src: Ints, dst: Ints, capacity: float, latency: float, cables: int = 1) -> Ints:
        """Add links ``src[i] -> dst[i]`` of ``cables`` x ``capacity`` bytes/s each; gives back their ids."""
        if level not in self.level_names:
            self.level_names.append(level)
        src, dst = np.broadcast_arrays(src, dst)
        self._parts.append((src, dst, capacity * cables, latency, self.level_names.index(level), cables))
        self.count += src.size
        return np.arange(self.count - src.size, self.count, dtype=np.int64)

    def add_pair(
        self, low: Ints, high: Ints, level: str, capacity: float, latency: float, cables: int = 1
    ) -> tuple[Ints, Ints]:
        """Add both directions of ``low[i] - high[i]``; gives back the ids upwards and downwards."""
        return (
            self.add(level, low, high, capacity, latency, cables),
            self.add(level, high, low, capacity, latency, cables),
        )

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """The columns of a Topology: link_src, link_dst, capacity, latency, link_level, cables."""
        types = {
            "link_src": np.int64, "link_dst": np.int64, "capacity": np.float64, "latency": np.float64,
            "link_level": np.int64, "cables": np.int64,
        }  # fmt: skip
        columns = {name: np.empty(self.count, dtype) for name, dtype in types.items()}
        first = 0
        for part in self._parts:
            here, first = slice(first, first + part[0].size), first + part[0].size
            for column, value in zip(columns.values(), part, strict=True):
                column[here].reshape(part[0].shape)[...] = value
        return columns
