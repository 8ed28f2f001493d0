"""An exchange between all pairs of a group, summed over the fabric's structure instead of pair by pair.

65,536 members have four billion pairs, yet on a Clos network what a link carries depends only on how many members are
below it, and on a closed torus all links of an axis carry the same.
"""

from __future__ import annotations

import numpy as np

from emulator.topology.closroutes import ClosRouter
from emulator.topology.graph import Floats, Ints, Router
from emulator.topology.torusroutes import TorusRouter

Sum = tuple[Ints, Floats, float]


def all_pairs(router: Router, members: Ints) -> Sum | None:
    """What a flow from every member to every other puts on the links: links (ascending), flows on each (shares summed),
    the slowest latency (s). None where routes do not follow such a rule, or for fewer than two members."""
    if len(members) < 2 or len(np.unique(members)) != len(members):
        return None
    if isinstance(router, ClosRouter):
        return _clos(router, members)
    if isinstance(router, TorusRouter):
        return _torus(router, members)
    return None


def _clos(router: ClosRouter, members: Ints) -> Sum:
    n = len(members)
    node, leaf, pod = router.node[members], router.leaf[members], router.pod[members]
    same_node = _equal(node) if router.inside is not None else np.ones(n)
    same_leaf = _equal(leaf)
    both = _equal(np.stack([node, leaf], axis=1)) if router.inside is not None else np.ones(n)
    # Flows of each member by where they turn: in the node, at the leaf, above it, above the pod.
    beyond_node = n - same_node
    beyond_leaf = n - same_node - same_leaf + both
    beyond_pod = n - _equal(pod)
    weight = np.zeros(1 + max([*(int(x.max()) for x in (*router.up, *router.down, *(router.inside or ())))]))
    if router.inside is not None:
        for links in router.inside:
            weight[links[members]] += same_node - 1
    for tier, (flows, lower) in enumerate(((beyond_node, members), (beyond_leaf, leaf), (beyond_pod, pod))):
        if tier < len(router.up):
            for links in (router.up[tier], router.down[tier]):
                np.add.at(weight, links[lower], (flows / links.shape[1])[:, np.newaxis])
    turns = [router.inside is not None and same_node.max() > 1, (same_leaf - both).max() > 0]
    turns += [(beyond_leaf - beyond_pod).max() > 0, beyond_pod.max() > 0]
    latency = max(float(router.latencies[kind]) for kind, happens in enumerate(turns) if happens)
    link = np.flatnonzero(weight)
    return link, weight[link], latency


def _equal(labels: Ints) -> Floats:
    """How many rows are equal to each row, itself included."""
    _, which, count = np.unique(labels, axis=0, return_inverse=True, return_counts=True)
    return count[which.ravel()].astype(np.float64)


def _torus(router: TorusRouter, members: Ints) -> Sum | None:
    """The whole of a torus, hypercube, or mesh in dimension order: hops of all flows along an axis, by its links."""
    lattice = router.lattice
    total = int(np.prod(lattice.shape))
    if lattice.twist or len(members) != total:
        return None
    if not (router.dimension_order or all(c or n <= 2 for c, n in zip(lattice.closed, lattice.shape, strict=True))):
        return None
    link, weight, hops = [], [], 0
    place = np.unravel_index(np.arange(total), lattice.shape)
    for axis, (length, closed) in enumerate(zip(lattice.shape, lattice.closed, strict=True)):
        distance = np.arange(length)
        if closed:
            up, down = distance[2 * distance < length].sum(), distance[2 * distance < length].sum()
            if length % 2 == 0:
                up += length / 2 if not router.ties_both else length / 4
                down += 0 if not router.ties_both else length / 4
            loads = (np.full(length, up), np.full(length, down))
            hops += length // 2
        else:
            loads = ((distance + 1.0) * (length - 1 - distance), distance * 1.0 * (length - distance))
            hops += length - 1
        for port, load in zip((axis, len(lattice.shape) + axis), loads, strict=True):
            exists = router.port_link[port] >= 0
            carried = (load * (total / length))[place[axis]]
            link.append(router.port_link[port][exists])
            weight.append(carried[exists])
    links, weights = np.concatenate(link), np.concatenate(weight)
    order = np.argsort(links)
    used = weights[order] > 0
    return links[order][used], weights[order][used], hops * router.hop_latency
