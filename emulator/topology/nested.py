"""A topology as the node of another: copies of an inner fabric, joined by an outer one.

The outer fabric is one network with a port for every accelerator, or one network per *rail*, the i-th joining
accelerator i of every node. Traffic inside a node stays inside. Between nodes it takes the outer network directly; with
rails it goes inside its own node to the accelerator of the target's rail first, and leaves from there (dimension order,
inner dimension first; what NCCL calls PXN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from emulator.errors import InputError
from emulator.topology.graph import Facts, Floats, Ints, NodeNames, Router, Routes, assemble, check_size, flow_of

Fields = Mapping[str, Any]  # the fields of a Topology, as the builders give them
_COLUMNS = ("link_src", "link_dst", "capacity", "latency", "link_level", "cables")


@dataclass(frozen=True, eq=False)
class NestedRouter:
    """Accelerators are numbered node by node, ``size`` per node; links node by node, then rail by rail."""

    inner: Router
    outer: Router
    size: int
    inner_links: int
    outer_links: int
    nodes: int
    rails: bool

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        (node, own), (target, other) = np.divmod(src, self.size), np.divmod(dst, self.size)
        first_outer = self.nodes * self.inner_links
        away = node != target
        latency = np.zeros(len(src))
        parts: list[tuple[Ints, Ints, Floats]] = []

        def add(flows: Ints, router: Router, a: Ints, b: Ints, shift: Ints) -> None:
            if len(flows):
                found = router.route(a[flows], b[flows])
                which = flows[flow_of(found)]
                parts.append((which, found.link + shift[which], found.share))
                latency[flows] += found.latency

        inside = own != other if self.rails else ~away
        add(np.flatnonzero(inside), self.inner, own, other, node * self.inner_links)
        if self.rails:
            add(np.flatnonzero(away), self.outer, node, target, first_outer + other * self.outer_links)
        else:
            add(np.flatnonzero(away), self.outer, src, dst, np.full(len(src), first_outer))
        return assemble(len(src), parts, latency)


def nest(inner: Fields, build_outer: Callable[[int], dict[str, Any]], wanted: int, *, rails: bool) -> dict[str, Any]:
    """The fields of a Topology of at least ``wanted`` accelerators in nodes as ``inner`` describes.

    ``build_outer`` makes the outer fabric for so many ends: nodes with ``rails``, else accelerators.
    """
    size = int(inner["accelerators"])
    nodes = -(-wanted // size)
    outer = build_outer(nodes if rails else nodes * size)
    ends = int(outer["accelerators"])
    if not rails and ends % size:
        raise InputError(f"{ends:,} places of the outer fabric are not whole nodes of {size:,}", place="levels")
    nodes, copies = (ends, size) if rails else (ends // size, 1)
    total = nodes * size
    check_size(nodes * len(inner["link_src"]) + copies * len(outer["link_src"]), next(iter(outer["level_names"]), ""))
    names, switches = _names(inner, outer, nodes, copies)
    below = _replicate(inner, nodes, size, lambda copy, end: copy * size + end, total)
    above = _replicate(
        outer, copies, ends, lambda copy, end: end * size + copy if rails else end,
        total + nodes * (len(inner["node_names"]) - size),
    )  # fmt: skip
    levels = (*inner["level_names"], *(name for name in outer["level_names"] if name not in inner["level_names"]))
    number = np.array([levels.index(name) for name in outer["level_names"]], dtype=np.int64)
    above["link_level"] = number[above["link_level"]]
    domains = int(inner["domain"].max()) + 1
    return {
        **{column: np.concatenate([below[column], above[column]]) for column in _COLUMNS},
        "accelerators": total,
        "node_names": names,
        "level_names": levels,
        "switches": switches,
        "domain": (np.arange(nodes)[:, None] * domains + inner["domain"]).ravel(),
        "router": NestedRouter(
            inner["router"], outer["router"], size, len(inner["link_src"]), len(outer["link_src"]), nodes, rails
        ),
        "forwards": rails or inner.get("forwards", False) or outer.get("forwards", False),
        "facts": _facts(inner["facts"], outer["facts"], nodes, copies),
        "built": f"{nodes:,} x ({inner['built']}), joined "
        + (f"rail by rail, {copies:,} x " if rails else "by ") + f"({outer['built']})",
        "findings": (*inner.get("findings", ()), *outer.get("findings", ())),
    }  # fmt: skip


def _replicate(
    fabric: Fields, copies: int, ends: int, place: Callable[[Ints, Ints], Ints], first_switch: int
) -> dict[str, Any]:
    """Link columns of so many copies; ``place`` numbers accelerator ``end`` of a copy, switches count from there on.

    Switches of one kind stay together, copy by copy, so that their names have a shape.
    """
    copy = np.arange(copies)[:, None]
    numbers = [place(copy, np.arange(ends)[None, :])]
    for _, shape in _switch_groups(fabric):
        many = prod(shape)
        numbers.append(first_switch + copy * many + np.arange(many))
        first_switch += copies * many
    number = np.concatenate(numbers, axis=1).astype(np.int64)
    columns = {name: np.tile(fabric[name], copies) for name in _COLUMNS}
    for name in ("link_src", "link_dst"):
        columns[name] = number[:, fabric[name]].ravel()
    return columns


def _names(inner: Fields, outer: Fields, nodes: int, copies: int) -> tuple[NodeNames, Ints]:
    """Names of all nodes in the order of ``_replicate``, and how many switches each stands for."""
    called, shape = inner["node_names"].groups[0]
    groups = [(called, (nodes, *shape) if len(shape) > 1 else (nodes * prod(shape),))]
    switches: list[Ints] = []
    for fabric, many in ((inner, nodes), (outer, copies)):
        first = 0
        for prefix, each in _switch_groups(fabric):
            groups.append((prefix, tuple(n for n in (many, *each) if n > 1) or (1,)))
            switches.append(np.tile(fabric["switches"][first : first + prod(each)], many))
            first += prod(each)
    return NodeNames(groups), np.concatenate([*switches, np.empty(0, np.int64)]).astype(np.int64)


def _switch_groups(fabric: Fields) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(fabric["node_names"].groups[1:])


def _facts(inner: Facts, outer: Facts, nodes: int, copies: int) -> Facts:
    """Halves made of whole nodes cut the outer networks, halves of every node the inner ones and what joins halves."""
    diameter = None
    if inner.diameter is not None and outer.diameter is not None:
        diameter = inner.diameter + outer.diameter if copies > 1 else max(inner.diameter, outer.diameter)
    cuts: list[tuple[float, str]] = []
    if outer.bisection is not None and nodes % 2 == 0:
        cuts.append((copies * outer.bisection, "an upper bound: halves of the nodes"))
    if inner.bisection is not None and copies > 1:
        cuts.append((nodes * inner.bisection, "an upper bound: halves of every node"))
    bisection, note = min(cuts) if cuts else (None, "")
    nonblocking = inner.nonblocking and outer.nonblocking and copies == 1  # with rails, routes pass accelerators
    return Facts(diameter, bisection, note, {**inner.oversubscription, **outer.oversubscription}, nonblocking)
