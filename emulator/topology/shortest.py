"""Routing on any graph: equal split over all shortest paths by hops (parallel cables count as separate paths).

Works on the arrays of any Topology; the fabrics with a closed form are tested against it. Paths pass through an
accelerator only where accelerators forward. One search per source and one walk back per pair, both kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emulator.topology.graph import Floats, Ints, Routes, Topology, assemble, offsets


@dataclass(frozen=True, eq=False)
class Search:
    """All shortest paths from one source: hops (-1: unreachable), number of paths and latency (s) per node."""

    hops: Ints
    paths: Floats
    latency: Floats


@dataclass(frozen=True, eq=False)
class ShortestPaths:
    """Router over link arrays; ``cables`` weigh the paths. Unreachable pairs raise ValueError."""

    nodes: int
    accelerators: int
    link_src: Ints
    link_dst: Ints
    latency: Floats
    cables: Ints
    forwards: bool
    _out: tuple[Ints, Ints] = field(init=False)
    _in: tuple[Ints, Ints] = field(init=False)
    _searches: dict[int, Search] = field(default_factory=dict)
    _pairs: dict[tuple[int, int], tuple[Ints, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_out", _rows(self.link_src, self.nodes))
        object.__setattr__(self, "_in", _rows(self.link_dst, self.nodes))

    @classmethod
    def of(cls, topology: Topology) -> ShortestPaths:
        """The router for the links of a topology."""
        t = topology
        return cls(t.nodes, t.accelerators, t.link_src, t.link_dst, t.latency, t.cables, t.forwards)

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        parts: list[tuple[Ints, Ints, Floats]] = []
        latency = np.empty(len(src))
        for flow, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
            link, share = self._pair(a, b)
            parts.append((np.full(len(link), flow), link, share))
            latency[flow] = self.search(a).latency[b]
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


def _rows(ends: Ints, nodes: int) -> tuple[Ints, Ints]:
    """Links by the node at one of their ends, as compressed rows."""
    return offsets(np.bincount(ends, minlength=nodes)), np.argsort(ends, kind="stable")


def _take(rows: tuple[Ints, Ints], nodes: Ints) -> Ints:
    ptr, link = rows
    counts = ptr[nodes + 1] - ptr[nodes]
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    taken: Ints = link[np.repeat(ptr[nodes], counts) + inside]
    return taken
