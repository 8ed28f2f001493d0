"""Fat trees and other switched fabrics: a scale-up switch per node and up to three tiers of switches.

One builder for what the field calls fat tree, leaf/spine, rail-optimised Clos and multi-plane "all-to-all" racks: they
differ in numbers only (``sizing.ClosPlan``). Where traffic is spread in equal parts over all shortest paths, planes,
the spines of a pod and the cores always carry equal parts; ``bundled`` makes one node of them, which changes no rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class _Layer:
    """One tier in numbers: ``members`` below meet every switch of their group.

    ``shape``: switches, [groups, choices...]; each stands for ``each`` equal ones. ``bundle`` cables of ``capacity``
    (bytes/s) make one link of ``latency`` (s); ``apart`` such links join each pair.
    """

    name: str
    label: str
    members: int
    shape: tuple[int, ...]
    named: tuple[int, ...]
    bundle: int
    apart: int
    capacity: float
    latency: float
    each: int = field(compare=False)


@dataclass(frozen=True)
class ClosDesign:
    """All that decides the arrays of a Clos network; equal designs give equal links, routes and times.

    ``hashing``: flows per pair and seed, None where every route is spread or there is nothing to choose. ``facts``,
    ``built``, ``findings`` and ``used`` (levels) describe it and are not compared.
    """

    called: str
    nodes: int
    node_size: int
    rails: int
    nodes_per_unit: int
    units: int
    units_per_pod: int
    pods: int
    inside: tuple[str, str, float, float] | None  # the node's switch: name, label of its links, bytes/s, seconds
    layers: tuple[_Layer, ...]
    hashing: tuple[int, int] | None
    pxn: bool
    facts: Facts = field(compare=False)
    built: str = field(compare=False)
    findings: tuple[str, ...] = field(compare=False)
    used: tuple[str, ...] = field(compare=False)

    def cabling(self) -> ClosDesign:
        """The design without what its links give; equal ones have links between the same nodes."""
        inside = None if self.inside is None else (*self.inside[:2], 0.0, 0.0)
        layers = tuple(replace(layer, bundle=1, capacity=0.0, latency=0.0) for layer in self.layers)
        return replace(self, inside=inside, layers=layers)


def design(levels: Mapping[str, Switch | Tier], accelerators: int, file: TopologyFile) -> ClosDesign:
    """A switched fabric in numbers: ``levels`` is an optional switch, then tiers, innermost first.

    ``file`` says how it is routed and what accelerators are called. Hashed routing keeps every switch and every cable
    apart. Raises InputError (without the file's name) if the network cannot be built.
    """
    domain = next((level for level in levels.values() if isinstance(level, Switch)), None)
    tiers = {name: level for name, level in levels.items() if isinstance(level, Tier)}
    p = plan(domain, list(tiers.values()), accelerators, list(tiers))
    used = dict(list(tiers.items())[: p.tiers])
    if file.pxn and (domain is None or p.rails == 1):
        raise InputError("pxn needs a switch per node and a tier of several rails", place="pxn")
    check_size(2 * p.nodes * p.node_size, next(iter(levels)))
    apart = file.routing == "ecmp"
    layers = _layers(p, used, bundled=file.bundled and not apart, apart=apart)
    choices = any(prod(layer.shape[1:]) * layer.apart > 1 for layer in layers)
    name = next(iter(levels))
    return ClosDesign(
        file.called, p.nodes, p.node_size, p.rails, p.nodes_per_unit, p.units, p.units_per_pod, p.pods,
        inside=None if domain is None else (name, domain.links or name, domain.capacity, domain.latency),
        layers=layers,
        hashing=(file.flows_per_pair, file.seed) if apart and choices else None,
        pxn=file.pxn,
        facts=replace(_facts(p, domain, used), nonblocking=not (apart or file.pxn) and _nonblocking(p, used)),
        built=_sentence(p, domain, used, file.called),
        findings=_findings(p, used),
        used=(*levels,)[: (domain is not None) + p.tiers],
    )  # fmt: skip


def _layers(p: ClosPlan, used: Mapping[str, Tier], *, bundled: bool, apart: bool) -> tuple[_Layer, ...]:
    """The tiers in numbers; ``apart`` makes each parallel cable a link, ``bundled`` one node of equal switches."""
    planes, spines, cores = (1, 1, 1) if bundled else (p.planes, p.spines, p.cores)
    shapes = [(p.units * p.rails, planes), (p.pods, planes, spines), (1, planes, spines, cores)]
    all_shapes = [(p.units * p.rails, p.planes), (p.pods, p.planes, p.spines), (1, p.planes, p.spines, p.cores)]
    members = [p.nodes * p.node_size, p.units * p.rails, p.pods]
    cables = [p.nic_cables, p.spine_cables, p.core_cables]
    layers = []
    for i, (name, tier) in enumerate(used.items()):
        each = prod(all_shapes[i]) // prod(shapes[i])
        parallel = cables[i] if apart else 1
        check_size(2 * members[i] * prod(shapes[i][1:]) * parallel, name)
        named = (p.units, p.rails, planes) if i == 0 else shapes[i]
        bundle = cables[i] * each // parallel
        layers.append(_Layer(name, tier.links or name, members[i], shapes[i], named, bundle, parallel,
                             tier.capacity, tier.latency, each))  # fmt: skip
    return tuple(layers)


def build(d: ClosDesign) -> dict[str, Any]:
    """The fields of a Topology for a design, and ``used``: the names of the levels that the job needs."""
    hosts = np.arange(d.nodes * d.node_size)
    node = hosts // d.node_size
    unit = node // d.nodes_per_unit
    leaf = unit * d.rails + hosts % d.rails if d.rails > 1 else unit
    leaf_pod = np.arange(d.units * d.rails) // (d.units_per_pod * d.rails)
    table, nodes = LinkTable(), _Nodes(d.called, len(hosts))
    inside = None
    if d.inside is not None:
        name, label, capacity, latency = d.inside
        switch = nodes.add(name, (d.nodes,), (d.nodes,))[node]
        inside = table.add_pair(hosts, switch, label, capacity, latency)
    links = []
    lower = hosts
    for layer, parents in zip(d.layers, (leaf, leaf_pod, np.zeros(d.pods, dtype=np.int64)), strict=False):
        switches = nodes.add(layer.name, layer.named, layer.shape, layer.each)
        upper = np.repeat(switches[parents][..., None], layer.apart, axis=-1)
        below = lower.reshape(lower.shape + (1,) * (upper.ndim - lower.ndim))
        up, down = table.add_pair(below, upper, layer.label, layer.capacity, layer.latency, layer.bundle)
        links.append((up.reshape(layer.members, -1), down.reshape(layer.members, -1)))
        lower = switches
    climbs = np.cumsum([layer.latency for layer in d.layers] + [0.0] * (3 - len(d.layers)))
    clos = ClosRouter(
        node,
        leaf,
        leaf_pod[leaf],
        inside,
        up=tuple(up for up, _ in links),
        down=tuple(down for _, down in links),
        latencies=2 * np.concatenate(([d.inside[3] if d.inside else 0.0], climbs)),
    )
    router: Router = clos
    if d.hashing is not None:
        router = HashedClos(clos, tuple(layer.apart for layer in d.layers), *d.hashing)
    if d.pxn:
        router = RailHop(router, node, d.node_size, d.rails)
    return table.columns() | {
        "accelerators": len(hosts),
        "node_names": NodeNames(nodes.groups),
        "level_names": tuple(table.level_names),
        "switches": np.concatenate([*nodes.switches, np.empty(0, np.int64)]),
        "domain": node if d.inside is not None else unit,
        "router": router,
        "facts": d.facts,
        "built": d.built,
        "used": d.used,
        "findings": d.findings,
    }


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
