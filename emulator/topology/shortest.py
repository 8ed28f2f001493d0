"""Routing on any graph: equal split over all shortest paths by hops (parallel cables count as separate paths).

Works on the arrays of any Topology; the fabrics with a closed form are tested against it. Paths pass through an
accelerator only where accelerators forward. One search per source and one walk back per pair, both kept. Accelerators
of one domain (server) that can reach each other over links of that server alone, do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emulator.rows import by_value
from emulator.topology.graph import Floats, Ints, Routes, Topology, assemble
from emulator.topology.hashing import hashed


@dataclass(frozen=True, eq=False)
class Search:
    """All shortest paths from one source: hops (-1: unreachable), number of paths and latency (s) per node."""

    hops: Ints
    paths: Floats
    latency: Floats


@dataclass(frozen=True, eq=False)
class ShortestPaths:
    """Router over link arrays; ``cables`` weigh the paths. Unreachable pairs raise ValueError.

    ``domain`` (None: one for all) is that of each accelerator. ``flows`` > 0: so many hashed flows per pair, each on
    one of the shortest paths (all equally likely) instead of equal parts on all.
    """

    nodes: int
    accelerators: int
    link_src: Ints
    link_dst: Ints
    latency: Floats
    cables: Ints
    forwards: bool
    domain: Ints | None = None
    flows: int = 0
    seed: int = 0
    _inside: tuple[ShortestPaths, Ints] | None = field(init=False, default=None)
    _out: tuple[Ints, Ints] = field(init=False)
    _in: tuple[Ints, Ints] = field(init=False)
    _searches: dict[int, Search] = field(default_factory=dict)
    _pairs: dict[tuple[int, int], tuple[Ints, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_out", by_value(self.link_src, self.nodes))
        object.__setattr__(self, "_in", by_value(self.link_dst, self.nodes))
        if self.domain is not None:
            object.__setattr__(self, "_inside", self._servers(self.domain))

    @classmethod
    def of(cls, topology: Topology) -> ShortestPaths:
        """The router for the links of a topology."""
        t = topology
        return cls(t.nodes, t.accelerators, t.link_src, t.link_dst, t.latency, t.cables, t.forwards)

    def _servers(self, domain: Ints) -> tuple[ShortestPaths, Ints]:
        """A router over the links that belong to one server, and the ids of those links.

        A switch belongs to a server if all its neighbours are accelerators of that server.
        """
        end = np.concatenate([self.link_src, self.link_dst])
        other = np.concatenate([self.link_dst, self.link_src])
        theirs = np.where(other < self.accelerators, domain[np.minimum(other, self.accelerators - 1)], -1)
        low, high = np.full(self.nodes, np.iinfo(np.int64).max), np.full(self.nodes, -1)
        np.minimum.at(low, end, theirs)
        np.maximum.at(high, end, theirs)
        owner = np.where(low == high, low, -1)  # -1: of nobody alone
        owner[: self.accelerators] = domain
        link = np.flatnonzero((owner[self.link_src] == owner[self.link_dst]) & (owner[self.link_src] >= 0))
        ends = (self.link_src[link], self.link_dst[link], self.latency[link], self.cables[link])
        return ShortestPaths(
            self.nodes, self.accelerators, *ends, self.forwards, flows=self.flows, seed=self.seed
        ), link.astype(np.int64)

    def _one(self, source: int, target: int) -> tuple[Ints, Floats, float]:
        """Links, shares and latency of one flow."""
        if self._inside is not None and self.domain is not None and self.domain[source] == self.domain[target]:
            router, ids = self._inside
            if router.search(source).hops[target] >= 0:
                link, share, latency = router._one(source, target)
                return ids[link], share, latency
        return *self._pair(source, target), float(self.search(source).latency[target])

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        parts: list[tuple[Ints, Ints, Floats]] = []
        latency = np.empty(len(src))
        for flow, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
            link, share, latency[flow] = self._one(a, b)
            parts.append((np.full(len(link), flow), link, share))
        return assemble(len(src), parts, latency)

    def search(self, source: int) -> Search:
        """Breadth-first search from one accelerator."""
        if source not in self._searches:
            self._searches[source] = self._search(source)
        return self._searches[source]

    def _search(self, source: int) -> Search:
        hops = np.full(self.nodes, -1, dtype=np.int64)
        paths, latency = np.zeros(self.nodes), np.zeros(self.nodes)
        hops[source], paths[source] = 0, 1.0
        front, level = np.array([source]), 0
        while len(front):
            link = _take(self._out, front)
            there = self.link_dst[link]
            link = link[hops[there] < 0]
            here, there = self.link_src[link], self.link_dst[link]
            level += 1
            np.add.at(paths, there, paths[here] * self.cables[link])
            np.maximum.at(latency, there, latency[here] + self.latency[link])
            front = np.unique(there)
            hops[front] = level
            if not self.forwards:
                front = front[front >= self.accelerators]
        return Search(hops, paths, latency)

    def _pair(self, source: int, target: int) -> tuple[Ints, Floats]:
        """Links and shares of one flow, in order of distance from the source.

        Walking back, a node hands its share to the links into it in proportion to the shortest paths they end.
        """
        key = (source, target)
        if key not in self._pairs:
            found = self.search(source)
            if found.hops[target] < 0:
                raise ValueError(f"no path from node {source} to node {target}")
            if self.flows:
                self._pairs[key] = self._hashed(source, target)
                return self._pairs[key]
            share_of = np.zeros(self.nodes)
            share_of[target] = 1.0
            links: list[Ints] = []
            shares: list[Floats] = []
            front = np.array([target])
            for level in range(int(found.hops[target]) - 1, -1, -1):
                link = _take(self._in, front)
                here = self.link_src[link]
                usable = found.hops[here] == level
                if not self.forwards and level > 0:
                    usable &= here >= self.accelerators
                link, here = link[usable], here[usable]
                there = self.link_dst[link]
                share = share_of[there] * found.paths[here] * self.cables[link] / found.paths[there]
                np.add.at(share_of, here, share)
                links.append(link)
                shares.append(share)
                front = np.unique(here)
            self._pairs[key] = (np.concatenate(links[::-1]), np.concatenate(shares[::-1]))
        return self._pairs[key]

    def _hashed(self, source: int, target: int) -> tuple[Ints, Floats]:
        """Links and shares of hashed flows: each walks back from the target, a link as likely as it has paths."""
        found = self.search(source)
        words = hashed(self.seed, np.int64(source), np.int64(target), np.arange(self.flows))
        taken: dict[int, float] = {}
        for word in words:
            here = target
            for level in range(int(found.hops[target]) - 1, -1, -1):
                link = _take(self._in, np.array([here]))
                before = self.link_src[link]
                usable = found.hops[before] == level
                if not self.forwards and level > 0:
                    usable &= before >= self.accelerators
                link = link[usable]
                paths = np.cumsum(found.paths[self.link_src[link]] * self.cables[link])
                part = float(hashed(self.seed, word.view(np.int64), np.int64(level))[0] >> np.uint64(11)) / 2.0**53
                chosen = int(link[np.searchsorted(paths, part * paths[-1], side="right")])
                taken[chosen] = taken.get(chosen, 0.0) + 1 / self.flows
                here = int(self.link_src[chosen])
        return np.array(list(taken), dtype=np.int64)[::-1], np.array(list(taken.values()))[::-1]


def _take(rows: tuple[Ints, Ints], nodes: Ints) -> Ints:
    ptr, link = rows
    counts = ptr[nodes + 1] - ptr[nodes]
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    taken: Ints = link[np.repeat(ptr[nodes], counts) + inside]
    return taken
