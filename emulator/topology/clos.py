"""Fat trees and other switched fabrics: a scale-up switch per node and up to three tiers of switches.

One builder for what the field calls fat tree, leaf/spine, rail-optimised Clos and multi-plane "all-to-all" racks: they
differ in numbers only (``sizing.ClosPlan``). Where traffic is spread in equal parts over all shortest paths, planes,
the spines of a pod and the cores always carry equal parts; ``bundled`` makes one node of them, which changes no rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from emulator.errors import InputError
from emulator.topology.closroutes import ClosRouter, HashedClos, RailHop
from emulator.topology.graph import Facts, Ints, LinkTable, NodeNames, Router, check_size
from emulator.topology.sizing import ClosPlan, plan
from emulator.topology.spec import Switch, Tier, TopologyFile


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


_TOLD = 0.01  # an oversubscription that whole cables miss by more than this is said


def build(levels: Mapping[str, Switch | Tier], accelerators: int, file: TopologyFile) -> dict[str, Any]:
    """The fields of a Topology for a switched fabric: ``levels`` is an optional switch, then tiers, innermost first.

    ``file`` says how it is routed and what accelerators are called. Hashed routing keeps every switch and every cable
    apart. Raises InputError (without the file's name) if the network cannot be built.
    """
    called, hashing = file.called, file.routing == "ecmp"
    bundled = file.bundled and not hashing
    domain = next((level for level in levels.values() if isinstance(level, Switch)), None)
    tiers = {name: level for name, level in levels.items() if isinstance(level, Tier)}
    p = plan(domain, list(tiers.values()), accelerators, list(tiers))
    used = dict(list(tiers.items())[: p.tiers])
    check_size(2 * p.nodes * p.node_size, next(iter(levels)))
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
    layers, cables = _layers(p, used, parents, nodes, table, bundled, hashing)
    latency = np.cumsum([tier.latency for tier in used.values()] + [0.0] * (3 - len(used)))
    clos = ClosRouter(
        node,
        leaf,
        leaf_pod[leaf],
        inside,
        up=tuple(up for up, _ in layers),
        down=tuple(down for _, down in layers),
        latencies=2 * np.concatenate(([domain.latency if domain else 0.0], latency)),
    )
    router: Router = HashedClos(clos, cables, file.flows_per_pair, file.seed) if hashing else clos
    if file.pxn:
        if domain is None or p.rails == 1:
            raise InputError("pxn needs a switch per node and a tier of several rails", place="pxn")
        router = RailHop(router, node, p.node_size, p.rails)
    return table.columns() | {
        "accelerators": len(hosts),
        "node_names": NodeNames(nodes.groups),
        "level_names": tuple(table.level_names),
        "switches": np.concatenate([*nodes.switches, np.empty(0, np.int64)]),
        "domain": node if domain is not None else unit,
        "router": router,
        "facts": replace(_facts(p, domain, used), nonblocking=not (hashing or file.pxn) and _nonblocking(p, used)),
        "built": _sentence(p, domain, used, called),
        "used": (*levels,)[: (domain is not None) + p.tiers],
        "findings": _findings(p, used),
    }


def _layers(
    p: ClosPlan,
    used: Mapping[str, Tier],
    parents: tuple[Ints, ...],
    nodes: _Nodes,
    table: LinkTable,
    bundled: bool,
    apart: bool,
) -> tuple[list[tuple[Ints, Ints]], tuple[int, ...]]:
    """Switches and links of the tiers: for each tier the links up and down, [lower member, choices], and cables apart.

    ``parents[i]`` is the group of tier i that a lower switch (or accelerator, or pod) belongs to. Lower switches meet
    every upper switch of their group, plane by plane; ``apart`` makes each parallel cable a link, cables fastest.
    """  # fmt: skip
    planes, spines, cores = (1, 1, 1) if bundled else (p.planes, p.spines, p.cores)
    shapes = [(p.units * p.rails, planes), (p.pods, planes, spines), (1, planes, spines, cores)]
    all_shapes = [(p.units * p.rails, p.planes), (p.pods, p.planes, p.spines), (1, p.planes, p.spines, p.cores)]
    cables = [p.nic_cables, p.spine_cables, p.core_cables]
    layers: list[tuple[Ints, Ints]] = []
    lower = np.arange(len(parents[0]))
    for i, (name, tier) in enumerate(used.items()):
        named = (p.units, p.rails, planes) if i == 0 else shapes[i]
        each = prod(all_shapes[i]) // prod(shapes[i])
        check_size(2 * len(parents[i]) * prod(shapes[i][1:]) * (cables[i] if apart else 1), name)
        switches = nodes.add(name, named, shapes[i], each)
        upper = switches[parents[i]]
        below = lower.reshape(lower.shape + (1,) * (upper.ndim - lower.ndim))
        bundle = cables[i] * each
        if apart:
            upper, below, bundle = np.repeat(upper[..., None], cables[i], axis=-1), below[..., None], 1
        link = (tier.links or name, tier.capacity, tier.latency, bundle)
        up, down = table.add_pair(below, upper, *link)
        layers.append((up.reshape(len(lower), -1), down.reshape(len(lower), -1)))
        lower = switches
    return layers, tuple(cables[: len(layers)])


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


def _nonblocking(p: ClosPlan, used: Mapping[str, Tier]) -> bool:
    """Can every switch hand on all that comes from below? Traffic spread evenly fills no link between switches then."""
    rates = [tier.capacity for tier in used.values()]
    below = [p.nodes_per_unit * p.node_size // p.rails * p.nic_cables, p.units_per_pod * p.rails * p.spine_cables]
    above = [p.spines * p.spine_cables, p.cores * p.core_cables]
    steps = zip(below, above, rates, rates[1:], strict=False)
    return all(down * rate <= up * wider * (1 + 1e-9) for down, up, rate, wider in steps)


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
        if abs(want - got) > _TOLD * want
    )


def _count(n: int, what: str) -> str:
    if what in ("leaf", "spine", "core", "node", "pod", "gpu", "npu", "chip"):
        return f"{n:,} {what if n == 1 else {'leaf': 'leaves'}.get(what, what + 's')}"
    return f"{n:,} {what} switch{'es' * (n > 1)}"
