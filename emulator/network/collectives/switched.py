"""Algorithms whose switches add up and copy: NVLS (NVSwitch) and SHARP (InfiniBand), all of them pipelined.

In the switch of a server of p members each sends its whole buffer up (the part that it asks for itself too) and gets
its part, then sends that up once and gets everything: ``2a + (1 + 1/p) S/B`` for an all-reduce, where a ring needs
``2(p-1)/p S/B``. A gather or scatter alone takes ``a + S/B``.

``nvls_tree`` joins servers: their members at the same place reduce along double binary trees, each for its own part.
``sharp`` does that in the switches of the network: each network card sends its part up once and gets it back once.

The steps are the arithmetic, as direct exchanges; the phases say what links carry, where a reduced or copied message
crosses a link once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.errors import InputError
from emulator.network.collectives import direct
from emulator.network.collectives.phase import FIRST, LAST, WHOLE, Phase
from emulator.network.collectives.schedule import Case, Step
from emulator.network.collectives.tree import Tree, binary_pair, depths, stack
from emulator.network.maxmin import Floats, Ints


class _Flows:
    """Collects the flows of one phase."""

    def __init__(self) -> None:
        self.columns: list[tuple[Ints, Ints, Floats, Ints, Ints]] = []
        self.count = 0
        self.trees = 0

    def add(self, src: Ints, dst: Ints, fraction: float, tree: Ints | int = -1, part: int = WHOLE) -> Ints:
        """Add flows; gives back their numbers. ``tree`` -1: a flow by itself."""
        n = len(src)
        self.columns.append((src, dst, np.full(n, fraction), np.broadcast_to(tree, n), np.full(n, part)))
        self.count += n
        return np.arange(self.count - n, self.count)

    def phase(self, *chains: Ints) -> Phase:
        """The phase; ``chains`` in sequence."""
        src, dst, fraction, tree, part = (np.concatenate(column) for column in zip(*self.columns, strict=True))
        return Phase(src, dst, fraction, chains=chains, tree=tree, part=part)


def _servers(case: Case) -> Ints:
    if case.n > 1 and len(case.servers) == 1:
        return case.order[np.newaxis, :]
    if case.table is None or case.table.shape[1] == 1:
        raise InputError(
            "reduction in the switch needs servers with the same number of members, more than one, in each"
        )
    return case.table


def _inside(flows: _Flows, table: Ints, *, gather: bool, part: float) -> Ints:
    """In every server each member sends its part to all (gather), or gets its part of everyone's sum."""
    places = table.shape[1]
    member = np.repeat(table, places, axis=1).ravel()  # the owner of the part
    other = np.tile(table, (1, places)).ravel()
    tree = flows.trees + member
    flows.trees += int(table.max()) + 1
    apart = member != other
    ends = (member, other) if gather else (other, member)
    numbers = flows.add(ends[0][apart], ends[1][apart], part, tree[apart])
    # An owner's copy of its own part, or its own summand, passes the switch too.
    neighbour = np.roll(table, -1, axis=1).ravel()
    mine = table.ravel()
    own = (neighbour, mine) if gather else (mine, neighbour)
    flows.add(*own, part, flows.trees - int(table.max()) - 1 + mine, LAST if gather else FIRST)
    return numbers[:, np.newaxis]


def _single(case: Case) -> Ints:
    table = _servers(case)
    if len(table) > 1:
        raise InputError("nvls works within one server", remedy="nvls_tree and sharp join servers")
    return table


def all_gather_phases(case: Case) -> tuple[Phase, ...]:
    """Everyone's part up once, everything down."""
    flows = _Flows()
    return (flows.phase(_inside(flows, _single(case), gather=True, part=1 / case.n)),)


def reduce_scatter_phases(case: Case) -> tuple[Phase, ...]:
    """Everything up, everyone's part down once."""
    flows = _Flows()
    return (flows.phase(_inside(flows, _single(case), gather=False, part=1 / case.n)),)


def nvls_all_reduce_phases(case: Case) -> tuple[Phase, ...]:
    """Reduce-scatter and all-gather in a pipeline."""
    flows, table = _Flows(), _single(case)
    scatter = _inside(flows, table, gather=False, part=1 / case.n)
    return (flows.phase(scatter, _inside(flows, table, gather=True, part=1 / case.n)),)


def nvls_tree_phases(case: Case) -> tuple[Phase, ...]:
    """Reduce in the switches, double binary trees across, copy in the switches: one pipeline."""
    table = _servers(case)
    if len(table) == 1:
        raise InputError("nvls_tree joins servers; this group is in one", remedy="nvls works within one")
    servers, places = table.shape
    flows = _Flows()
    scatter = _inside(flows, table, gather=False, part=1 / places)
    ups, downs = [], []
    for parent in binary_pair(servers):
        tree = Tree(parent, depths(parent))
        child = np.flatnonzero(parent >= 0)
        for rail in table.T:
            edge = np.full(servers, -1)
            edge[child] = flows.add(rail[child], rail[parent[child]], 1 / (2 * places))
            ups.append(tree.chains(edge))
            edge[child] = flows.add(rail[parent[child]], rail[child], 1 / (2 * places))
            downs.append(tree.chains(edge))
    gather = _inside(flows, table, gather=True, part=1 / places)
    return (flows.phase(scatter, stack(ups), stack(downs), gather),)


def sharp_phases(case: Case) -> tuple[Phase, ...]:
    """Reduce-scatter in each server, reduction in the network between members at the same place, all-gather."""
    alone = not case.several_servers
    table = case.order[:, np.newaxis] if alone else _servers(case)
    servers, places = table.shape
    flows, part = _Flows(), 1 / places
    chains = [] if alone else [_inside(flows, table, gather=False, part=part)]
    slowest = []
    for rail in table.T:
        root, others = np.full(servers - 1, rail[0]), rail[1:]
        # The root stands for its switch: what it gets is the result, what it sends its own part, both once.
        slowest.append(flows.add(others, root, part, flows.trees))
        flows.add(root, others, part, flows.trees + 1)
        flows.trees += 2
    across = np.concatenate(slowest)[:, np.newaxis]
    if alone:
        return (flows.phase(across),)
    return (flows.phase(*chains, across, _inside(flows, table, gather=True, part=part)),)


def all_reduce(case: Case) -> Iterator[Step]:
    """The arithmetic: everyone's part is added up, then copied to all."""
    yield from direct.all_reduce(case)
