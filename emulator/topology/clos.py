"""Fat trees and other switched fabrics: a scale-up switch per node and up to three tiers of switches.

One builder for what the field calls fat tree, leaf/spine, rail-optimised Clos and multi-plane "all-to-all" racks: they
differ in numbers only (``sizing.ClosPlan``). Traffic is spread in equal parts over all shortest paths, so planes, the
spines of a pod and the cores always carry equal parts; ``bundled`` makes one node of them, which changes no rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from emulator.topology.graph import Facts, Floats, Ints, LinkTable, NodeNames, Routes, assemble
from emulator.topology.sizing import ClosPlan, plan
from emulator.topology.spec import Switch, Tier


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

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        same_pod, same_leaf = self.pod[src] == self.pod[dst], self.leaf[src] == self.leaf[dst]
        kind = np.where(same_leaf, 1, np.where(same_pod, 2, 3))
        if self.inside is not None:
            kind[self.node[src] == self.node[dst]] = 0
        ups, downs = [], []
        for tier, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            flows = np.flatnonzero(kind > tier)
            a, b = src[flows], dst[flows]
            if tier > 0:
                member = self.leaf if tier == 1 else self.pod
                a, b = member[a], member[b]
            ups.append(_part(flows, up[a]))
            downs.append(_part(flows, down[b]))
        if self.inside is not None:
            flows = np.flatnonzero(kind == 0)
            ups.append(_part(flows, self.inside[0][src[flows], None]))
            downs.append(_part(flows, self.inside[1][dst[flows], None]))
        return assemble(len(src), ups + downs[::-1], self.latencies[kind])


def _part(flows: Ints, links: Ints) -> tuple[Ints, Ints, Floats]:
    """Each flow on all links of its row of ``links``, in equal parts."""
    width = links.shape[1]
    return np.repeat(flows, width), links.ravel(), np.full(links.size, 1 / width)


class _Nodes:
    """Numbers nodes layer by layer; ``switches`` collects how many switches each node stands for."""

    def __init__(self, called: str, accelerators: int) -> None:
        self.groups: list[tuple[str, tuple[int, ...]]] = [(called, (accelerators,))]
        self.switches: list[Ints] = []
        self.count = accelerators

    def add(self, prefix: str, named: tuple[int, ...], shape: tuple[int, ...], each: int = 1) -> Ints:
        """Numbers of new nodes in ``shape``; their names count over ``named``, axes of length 1 left out."""
        self.groups.append((prefix, tuple(n for n in named if n > 1) or (1,)))
        self.switches.append(np.full(prod(shape), each, dtype=np.int64))
        first, self.count = self.count, self.count + prod(shape)
        return np.arange(first, self.count, dtype=np.int64).reshape(shape)


def build(levels: Mapping[str, Switch | Tier], accelerators: int, *, called: str, bundled: bool) -> dict[str, Any]:
    """The fields of a Topology for a switched fabric: ``levels`` is an optional switch, then tiers, innermost first.

    Raises InputError (without the file's name) if the network cannot be built.
    """
    domain = next((level for level in levels.values() if isinstance(level, Switch)), None)
    tiers = {name: level for name, level in levels.items() if isinstance(level, Tier)}
    p = plan(domain, list(tiers.values()), accelerators, list(tiers))
    used = dict(list(tiers.items())[: p.tiers])
    hosts = np.arange(p.nodes * p.node_size)
    node = hosts // p.node_size
    unit = node // p.nodes_per_unit
    leaf = unit * p.rails + hosts % p.node_size % p.rails
    leaf_pod = np.arange(p.units * p.rails) // (p.units_per_pod * p.rails)

    table, nodes = LinkTable(), _Nodes(called, len(hosts))
    inside = None
    if domain is not None:
        name = next(iter(levels))
        switch = nodes.add(name, (p.nodes,), (p.nodes,))[node]
        inside = table.add_pair(hosts, switch, domain.links or name, domain.capacity, domain.latency)
    parents = (leaf, leaf_pod, np.zeros(p.pods, dtype=np.int64))
    layers = _layers(p, used, parents, nodes, table, bundled)
    latency = np.cumsum([tier.latency for tier in used.values()] + [0.0] * (3 - len(used)))
    router = ClosRouter(
        node,
        leaf,
        leaf_pod[leaf],
        inside,
        up=tuple(up for up, _ in layers),
        down=tuple(down for _, down in layers),
        latencies=2 * np.concatenate(([domain.latency if domain else 0.0], latency)),
    )
    return table.columns() | {
        "accelerators": len(hosts),
        "node_names": NodeNames(nodes.groups),
        "level_names": tuple(table.level_names),
        "switches": np.concatenate([*nodes.switches, np.empty(0, np.int64)]),
        "domain": node if domain is not None else unit,
        "router": router,
        "facts": _facts(p, domain, used),
        "built": _sentence(p, domain, used, called),
        "findings": _findings(p, used),
    }


def _layers(
    p: ClosPlan, used: Mapping[str, Tier], parents: tuple[Ints, ...], nodes: _Nodes, table: LinkTable, bundled: bool
) -> list[tuple[Ints, Ints]]:
    """Switches and links of the tiers: for each tier the links up and down, [lower member, choices].

    ``parents[i]`` is the group of tier i that a lower switch (or accelerator, or pod) belongs to. Lower switches meet
    every upper switch of their group, plane by plane.
    """
    planes, spines, cores = (1, 1, 1) if bundled else (p.planes, p.spines, p.cores)
    shapes = [(p.units * p.rails, planes), (p.pods, planes, spines), (1, planes, spines, cores)]
    all_shapes = [(p.units * p.rails, p.planes), (p.pods, p.planes, p.spines), (1, p.planes, p.spines, p.cores)]
    cables = [p.nic_cables, p.spine_cables, p.core_cables]
    layers: list[tuple[Ints, Ints]] = []
    lower = np.arange(len(parents[0]))
    for i, (name, tier) in enumerate(used.items()):
        named = (p.units, p.rails, planes) if i == 0 else shapes[i]
        each = prod(all_shapes[i]) // prod(shapes[i])
        switches = nodes.add(name, named, shapes[i], each)
        upper = switches[parents[i]]
        link = (tier.links or name, tier.capacity, tier.latency, cables[i] * each)
        up, down = table.add_pair(lower.reshape(lower.shape + (1,) * (upper.ndim - lower.ndim)), upper, *link)
        layers.append((up.reshape(len(lower), -1), down.reshape(len(lower), -1)))
        lower = switches
    return layers


def _facts(p: ClosPlan, domain: Switch | None, used: Mapping[str, Tier]) -> Facts:
    """Diameter and the cheapest of the regular halvings: by node, else by leaf, else by pod."""
    total, tiers = p.nodes * p.node_size, list(used.values())
    if total == 1:
        return Facts(0, None, "one accelerator")
    if not tiers:
        capacity = domain.capacity if domain else 0.0
        return Facts(2, total // 2 * capacity, "halves of the node")
    nic = tiers[0].capacity * p.nic_cables * p.planes
    bisection, note = total // 2 * nic, "halves of the nodes"
    if p.units > 1:  # halves made of whole leaves meet at the spines
        leaf_up = tiers[1].capacity * p.spine_cables * p.spines * p.planes
        odd = p.units % 2 * (p.nodes_per_unit // 2) * p.node_size * nic  # a leaf in the middle is split by node
        by_leaf = p.units // 2 * p.rails * leaf_up + odd
        if by_leaf < bisection:
            bisection, note = by_leaf, "halves of the leaves"
    if p.pods > 1:
        pod_up = tiers[2].capacity * p.core_cables * p.cores * p.spines * p.planes
        by_pod = p.pods // 2 * pod_up
        if by_pod < bisection:
            bisection, note = by_pod, "halves of the pods"
    return Facts(2 * p.tiers, bisection, note, dict(zip(list(used)[1:], p.oversubscription, strict=True)))


def _sentence(p: ClosPlan, domain: Switch | None, used: Mapping[str, Tier], called: str) -> str:
    names = [*used, "", "", ""]
    total = p.nodes * p.node_size
    parts = [_count(p.nodes, "node") + f" of {p.node_size} {called}s" if domain else _count(total, called)]
    if p.tiers and p.rails > 1:
        parts += [f"{p.rails} rails", _count(p.units, names[0]) + " per rail"]
    elif p.tiers:
        parts.append(_count(p.units * p.planes, names[0]))
    if p.tiers and p.planes > 1:
        parts.append(f"{p.planes} planes")
    if p.tiers >= 2:
        parts.append(_count(p.pods * p.planes * p.spines, names[1]))
    if p.tiers == 3:
        parts += [_count(p.pods, "pod"), _count(p.planes * p.spines * p.cores, names[2])]
    if p.oversubscription:
        parts.append(", ".join(f"{ratio:.3g}:1" for ratio in p.oversubscription))
    return ", ".join(parts)


def _findings(p: ClosPlan, used: Mapping[str, Tier]) -> tuple[str, ...]:
    asked = [tier.oversubscription for tier in list(used.values())[1:]]
    return tuple(
        f"{name}: oversubscription {want:g} needs a fraction of a cable; built {got:.3g}:1"
        for name, want, got in zip(list(used)[1:], asked, p.oversubscription, strict=True)
        if abs(want - got) > 1e-6 * want
    )


def _count(n: int, what: str) -> str:
    if what in ("leaf", "spine", "core", "node", "pod", "gpu", "npu", "chip"):
        return f"{n:,} {what if n == 1 else {'leaf': 'leaves'}.get(what, what + 's')}"
    return f"{n:,} {what} switch{'es' * (n > 1)}"
