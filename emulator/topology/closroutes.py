"""Routes through a Clos network: spread over all choices, hashed onto some, and by way of the right rail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.topology.graph import Floats, Ints, Router, Routes, assemble, flow_of, merge
from emulator.topology.hashing import hashed, pick


@dataclass(frozen=True, eq=False)
class ClosRouter:
    """Routes by the first of: same node, same leaf, same pod, across pods. All arrays of links hold ids.

    ``inside``: links to and from the node's switch [N] (None without one). ``up[i]`` and ``down[i]``: links between
    the members of tier i and their choices above, [accelerators, leaves or pods; choices], a flow using all choices in
    equal parts. ``node``, ``leaf``, ``pod`` [N]: where an accelerator is. ``latencies`` (s) belong to the four kinds.
    """

    node: Ints
    leaf: Ints
    pod: Ints
    inside: tuple[Ints, Ints] | None
    up: tuple[Ints, ...]
    down: tuple[Ints, ...]
    latencies: Floats

    def kind(self, src: Ints, dst: Ints) -> Ints:
        """How many tiers each flow climbs: 0 inside a node to 3 across pods."""
        same_pod, same_leaf = self.pod[src] == self.pod[dst], self.leaf[src] == self.leaf[dst]
        kind = np.where(same_leaf, 1, np.where(same_pod, 2, 3))
        if self.inside is not None:
            kind[self.node[src] == self.node[dst]] = 0
        return kind

    def member(self, tier: int, accelerator: Ints) -> Ints:
        """What meets the switches of a tier for these accelerators: themselves, their leaf, their pod."""
        return accelerator if tier == 0 else (self.leaf if tier == 1 else self.pod)[accelerator]

    def inner_part(self, flows: Ints, src: Ints, dst: Ints, way: int) -> tuple[Ints, Ints, Floats]:
        """Flows inside a node on the links up (``way`` 0) or down (1) of its switch."""
        assert self.inside is not None
        return _part(flows, self.inside[way][(dst if way else src)[flows], None])

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        kind = self.kind(src, dst)
        ups, downs = [], []
        for tier, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            flows = np.flatnonzero(kind > tier)
            ups.append(_part(flows, up[self.member(tier, src[flows])]))
            downs.append(_part(flows, down[self.member(tier, dst[flows])]))
        if self.inside is not None:
            flows = np.flatnonzero(kind == 0)
            ups.append(self.inner_part(flows, src, dst, 0))
            downs.append(self.inner_part(flows, src, dst, 1))
        return assemble(len(src), ups + downs[::-1], self.latencies[kind])


def _part(flows: Ints, links: Ints) -> tuple[Ints, Ints, Floats]:
    """Each flow on all links of its row of ``links``, in equal parts."""
    width = links.shape[1]
    return np.repeat(flows, width), links.ravel(), np.full(links.size, 1 / width)


@dataclass(frozen=True, eq=False)
class HashedClos:
    """ECMP: every pair opens ``flows_per_pair`` equal flows, and a hash gives each one path through the network.

    All shortest paths are equally likely, as where every switch hashes with a seed of its own. ``cables[i]``: parallel
    cables per choice of tier i, each a link of its own, chosen by hash too.
    """

    clos: ClosRouter
    cables: tuple[int, ...]
    flows_per_pair: int
    seed: int

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        clos, many = self.clos, self.flows_per_pair
        kind = clos.kind(src, dst)
        word = hashed(self.seed, src[:, None], dst[:, None], np.arange(many))
        choices = [up.shape[1] // cables for up, cables in zip(clos.up, self.cables, strict=True)]
        ups: list[tuple[Ints, Ints, Floats]] = []
        downs: list[tuple[Ints, Ints, Floats]] = []
        for tier, cables in enumerate(self.cables):
            flows = np.flatnonzero(kind > tier)
            top = kind[flows, None] - 1
            path = np.empty((len(flows), many), dtype=np.int64)
            for height in range(tier, len(choices)):  # the switch at the top of the path decides those below it
                at = top[:, 0] == height
                path[at] = pick(word[flows[at]], choices[height]) // (choices[height] // choices[tier])
            for parts, table, ends, way in ((ups, clos.up, src, 0), (downs, clos.down, dst, 1)):
                cable = pick(hashed(self.seed, word[flows].view(np.int64), 2 * tier + way), cables)
                row = clos.member(tier, ends[flows])[:, None]
                link = table[tier][row, path * cables + cable]
                parts.append((np.repeat(flows, many), link.ravel(), np.full(link.size, 1 / many)))
        if clos.inside is not None:
            flows = np.flatnonzero(kind == 0)
            ups.append(clos.inner_part(flows, src, dst, 0))
            downs.append(clos.inner_part(flows, src, dst, 1))
        links = 1 + max(int(table.max()) for table in (*clos.up, *clos.down, *(clos.inside or ())))
        return merge(assemble(len(src), ups + downs[::-1], clos.latencies[kind]), links)


@dataclass(frozen=True, eq=False)
class RailHop:
    """NCCL's PXN: data for another rail of another node goes over the own node's switch to the accelerator of that rail
    first, and leaves by its NIC; so it meets the leaf of one rail only and needs no spine to change rails.

    The two parts are counted as one transfer at one rate (NCCL sends them in chunks, overlapped); latencies add up.
    """

    base: Router
    node: Ints
    node_size: int
    rails: int

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        own, other = src % self.node_size, dst % self.node_size
        away = self.node[src] != self.node[dst]
        via = np.where(away, src - own % self.rails + other % self.rails, src)
        hop = np.flatnonzero(via != src)
        first, second = self.base.route(src[hop], via[hop]), self.base.route(via, dst)
        latency = second.latency.copy()
        latency[hop] += first.latency
        parts = [(hop[flow_of(first)], first.link, first.share), (flow_of(second), second.link, second.share)]
        return assemble(len(src), parts, latency)
