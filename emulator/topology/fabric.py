"""From the levels of a file to the fields of a Topology: which builder each kind of level needs, and how they nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from math import prod
from typing import Any

import msgspec

from emulator.errors import InputError
from emulator.topology import clos, dragonfly, fullmesh, torus
from emulator.topology.graph import NodeNames, Topology
from emulator.topology.nested import nest
from emulator.topology.spec import Dragonfly, FullMesh, Graph, Hypercube, Level, Switch, Tier, TopologyFile, Torus

Group = Mapping[str, Level]  # levels that make one fabric: a switch and tiers, or a single level
ReadGraph = Callable[[str], Topology]


def build(file: TopologyFile, levels: Mapping[str, Level], accelerators: int, read_graph: ReadGraph) -> dict[str, Any]:
    """The fields of a Topology, and ``used``: the names of the levels that the job needs.

    ``read_graph`` reads the file of a ``graph`` level. Raises InputError without the file's name.
    """
    groups = _groups(levels)
    _check_routing(file, levels)
    fields: dict[str, Any] = {}
    used: list[str] = []
    size = 1
    for i, group in enumerate(groups):
        rails = next(iter(group.values())).joins == "rails" if i else False  # type: ignore[union-attr]
        last = i == len(groups) - 1
        wanted = -(-accelerators // size) * size
        fixed = _size(group) if not last else None
        if not last and fixed is None:
            raise InputError(
                "a level inside another needs a size", place=f"levels.{next(iter(group))}",
                remedy="give it size (or shape, groups), or make it the outermost",
            )  # fmt: skip
        if i == 0:
            alone = last or accelerators <= (fixed or 0)
            fields = _one(file, group, accelerators if alone or fixed is None else fixed, read_graph)
        else:
            scale = size if rails else 1
            ends = wanted if fixed is None else min(wanted, fixed * scale)

            def outer(count: int, group: Group = group) -> dict[str, Any]:
                return _one(file, group, count, read_graph)

            fields = nest(fields, outer, ends, rails=rails)
        used += fields.pop("used", list(group))
        size = int(fields["accelerators"])
        if size >= accelerators:
            break
    return fields | {"used": tuple(used)}


def clos_design(file: TopologyFile, levels: Mapping[str, Level], accelerators: int) -> clos.ClosDesign | None:
    """What decides the arrays, in numbers, where the job needs one Clos network and nothing else; None elsewhere.

    Raises InputError as ``build`` does.
    """
    groups = _groups(levels)
    _check_routing(file, levels)
    switched = _switched(groups[0], accelerators)
    if len(groups) > 1 or switched is None:
        return None
    return clos.design(switched, accelerators, file)


def fixed_size(levels: Mapping[str, Level]) -> int | None:
    """Accelerators of the whole, where the file fixes the size of every level; None if any grows with the job."""
    total = 1
    for i, group in enumerate(_groups(levels)):
        size = _size(group)
        if size is None or isinstance(next(iter(group.values())), Graph):
            return None
        rails = next(iter(group.values())).joins == "rails"  # type: ignore[union-attr]
        total = total * size if rails or i == 0 else size
    return total


def _groups(levels: Mapping[str, Level]) -> list[Group]:
    """Levels that belong to one fabric: neighbouring tiers, with the node's switch below them if they serve all."""
    runs = [dict(run) for _, run in groupby(levels.items(), lambda level: isinstance(level[1], Tier) or level[0])]
    first = next(iter(runs[0].values()))
    if len(runs) > 1 and isinstance(first, Switch):
        tier = next(iter(runs[1].values()))
        if isinstance(tier, Tier) and tier.joins == "accelerators" and first.size is not None:
            runs[:2] = [runs[0] | runs[1]]
    for i, run in enumerate(runs):
        names = list(run)
        tiers = [name for name in names if isinstance(run[name], Tier)]
        if len(tiers) > 3:
            raise InputError(f"{len(tiers)} tiers; a Clos network has up to three", place=f"levels.{tiers[3]}")
        if i and isinstance(run[names[0]], Graph):
            raise InputError("a graph can only be the innermost level", place=f"levels.{names[0]}")
    return list(runs)


def _size(group: Group) -> int | None:
    """Accelerators of a fabric whose size the file fixes."""
    if len(group) > 1:
        return None
    level = next(iter(group.values()))
    if isinstance(level, Torus) and level.shape is not None:
        return prod(torus.lengths(level, next(iter(group))))
    if isinstance(level, Dragonfly):
        return level.groups and level.groups * level.routers * level.hosts
    if isinstance(level, Graph):
        return 1  # its file knows; it is never sized to a job
    return None if isinstance(level, Tier) else level.size


def _one(file: TopologyFile, group: Group, accelerators: int, read_graph: ReadGraph) -> dict[str, Any]:
    """The fields of one fabric for so many accelerators (or more, where it comes in whole nodes)."""
    (name, level), *_ = group.items()
    how = file.routing if file.routing == "dimension-order" else "spread"
    if isinstance(level, Torus):
        return torus.build(name, level, accelerators, called=file.called, routing=how)
    if isinstance(level, Hypercube):
        return torus.build_hypercube(name, level, accelerators, called=file.called, routing=how)
    if isinstance(level, FullMesh):
        return fullmesh.build(name, level, accelerators, called=file.called)
    if isinstance(level, Dragonfly):
        return dragonfly.build(name, level, accelerators, file)
    if isinstance(level, Graph):
        return _graph(name, level, file.called, read_graph)
    switched = _switched(group, accelerators)
    assert switched is not None  # all other kinds are above
    return clos.build(clos.design(switched, accelerators, file))


def _switched(group: Group, accelerators: int) -> dict[str, Switch | Tier] | None:
    """The levels of a Clos network; a switch alone that names no size takes all. None for another fabric."""
    switched = {name: level for name, level in group.items() if isinstance(level, Switch | Tier)}
    if len(switched) < len(group):
        return None
    (name, level), *more = switched.items()
    if isinstance(level, Switch) and level.size is None and not more:
        return {name: msgspec.structs.replace(level, size=accelerators)}
    return switched


def _graph(name: str, level: Graph, called: str, read_graph: ReadGraph) -> dict[str, Any]:
    try:
        graph = read_graph(level.file)
    except InputError as error:
        raise InputError(f"{level.file}: {error.reason}", place=f"levels.{name}.file", remedy=error.remedy) from None
    switches = graph.nodes - graph.accelerators
    fields = {key: getattr(graph, key) for key in Topology.__dataclass_fields__ if key not in _OF_FILES}
    names = [(called, (graph.accelerators,)), *([(name, (switches,))] if switches else [])]
    return fields | {"node_names": NodeNames(names)}


_OF_FILES = {"name", "routing", "device", "sources", "power", "power_note"}
_HASHABLE = (Tier, Dragonfly, Graph)


def _check_routing(file: TopologyFile, levels: Mapping[str, Level]) -> None:
    """Refuse a routing that no level of the file can follow."""
    kinds: dict[str, tuple[tuple[type[Level], ...], str]] = {
        "dimension-order": ((Torus, Hypercube), "a torus, mesh or hypercube; this fabric spreads"),
        "ecmp": (_HASHABLE, "switched networks: tiers, dragonflies, graphs"),
        "minimal-adaptive": ((Dragonfly,), "a dragonfly"),
    }
    if file.routing in kinds:
        able, what = kinds[file.routing]
        if not any(isinstance(level, able) for level in levels.values()):
            raise InputError(f"routing {file.routing!r} is for {what}", place="routing")
    if file.pxn and not any(isinstance(level, Tier) and level.rails > 1 for level in levels.values()):
        raise InputError("pxn needs a switch per node and a tier of several rails", place="pxn")
