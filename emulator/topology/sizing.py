"""How many switches and cables a Clos network needs for a job: the arithmetic, without arrays.

The rule is the builder's of real clusters: fill switches, use as few of the next layer as their ports allow, and join
each pair by equal numbers of parallel cables. For radix 64 and 8 rails it reproduces the published switch counts of
DGX SuperPODs from 64 to 2,048 nodes (tests/test_topology_fabrics.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import msgspec

from emulator.errors import InputError
from emulator.topology.spec import Switch, Tier

_SLACK = 1e-9  # ratios such as 64/(1 + 1/3) are whole up to rounding


class TooSmallError(InputError):
    """A fabric has ``room`` for fewer accelerators than are wanted."""

    room = 0


def too_small(what: str, room: int, wanted: int, *, place: str = "", remedy: str = "") -> TooSmallError:
    """The error of a fabric (``what``) that has room for fewer accelerators than ``wanted``."""
    error = TooSmallError(
        f"the {what} holds {room:,} accelerators, the job needs {wanted:,}", place=place, remedy=remedy
    )
    error.room = room
    return error


@dataclass(frozen=True)
class ClosPlan:
    """Counts of a Clos network. ``units`` x ``rails`` leaves hold ``nodes_per_unit`` nodes each; see ``plan``.

    ``*_cables`` are the parallel cables of one link at that tier; ``oversubscription`` holds the ratios really built
    (whole cables), one per tier above the first.
    """

    nodes: int
    node_size: int
    tiers: int = 0
    rails: int = 1
    planes: int = 1
    nodes_per_unit: int = 1
    units: int = 1
    nic_cables: int = 1
    spines: int = 1
    spine_cables: int = 1
    units_per_pod: int = 1
    pods: int = 1
    cores: int = 1
    core_cables: int = 1
    oversubscription: tuple[float, ...] = ()


def plan(domain: Switch | None, tiers: Sequence[Tier], accelerators: int, names: Sequence[str]) -> ClosPlan:
    """The smallest network of at most three tiers for so many accelerators; ``names`` are the tiers' names.

    Raises InputError where it does not fit or would fall apart.
    """
    size = (domain.size if domain else 1) or accelerators
    nodes = ceil(accelerators / size)
    if nodes == 1 and (domain is not None or not tiers):
        return ClosPlan(nodes, size, nodes_per_unit=nodes)
    if not tiers:
        raise too_small("topology", size, accelerators, remedy="add a tier above the switch")
    leaf, cables = tiers[0], tiers[0].parallel or 1
    if size % leaf.rails:
        raise InputError(f"{leaf.rails} rails do not divide nodes of {size}", place=f"levels.{names[0]}.rails")
    nics = size // leaf.rails  # of one node on one leaf
    most = leaf.down or leaf.radix
    wide = leaf.rails == 1 and nodes * nics <= min(most, leaf.radix // cables)  # one leaf holds all, needs no way up
    ports = leaf.radix if wide or len(tiers) == 1 else _down_ports(leaf, tiers[1], nics * cables)
    room = min(ports // cables, most) // nics
    if room < 1:
        raise InputError(
            f"a switch has {ports} ports down, one node needs {nics * cables} of them",
            place=f"levels.{names[0]}.radix",
            remedy="give the switch more ports or the node more rails",
        )
    units = ceil(nodes / room)
    one = ClosPlan(
        nodes,
        size,
        tiers=1,
        rails=leaf.rails,
        planes=leaf.planes,
        nodes_per_unit=min(room, nodes),
        units=units,
        nic_cables=cables,
        units_per_pod=units,
    )
    if units == 1 and leaf.rails == 1:
        return one
    if len(tiers) == 1:
        if leaf.rails > 1:
            raise InputError(
                f"disconnected: nothing joins the {leaf.rails} rails, so accelerator 0 cannot reach {size + 1}",
                place="levels",
                remedy=f"add a tier above {names[0]}, or set {names[0]}.rails=1",
            )
        raise too_small(
            "topology", room * size, accelerators, remedy=f"add a tier above {names[0]} or raise {names[0]}.radix"
        )
    return _upper(one, tiers, names, min(room, nodes) * nics * cables, accelerators)


def _upper(one: ClosPlan, tiers: Sequence[Tier], names: Sequence[str], below: int, accelerators: int) -> ClosPlan:
    """The second and third tier over the leaves of ``one``; ``below`` is the number of cables into a full leaf."""
    leaf, spine = tiers[0], tiers[1]
    if spine.down:
        spine = msgspec.structs.replace(spine, radix=min(spine.down, spine.radix))
    up = _up_ports(below, leaf, spine)
    ratio = below * leaf.bandwidth / (up * spine.bandwidth)
    spines = _switches(up, one.units * one.rails, spine, names[1])
    if spines is not None:
        return replace(one, tiers=2, spines=spines, spine_cables=up // spines, oversubscription=(ratio,))
    per_unit, cables = one.nodes_per_unit * one.node_size, spine.parallel or 1
    if len(tiers) == 2:
        room = spine.radix // (one.rails * cables) * per_unit
        raise too_small("topology", room, accelerators, remedy=f"add a tier above {names[1]} or raise {names[1]}.radix")
    core = tiers[2]
    down = spine.down or _down_ports(spine, core, one.rails * cables)
    units_per_pod = down // (one.rails * cables)
    if units_per_pod < 1:
        raise InputError(
            f"a switch of radix {spine.radix} cannot join {one.rails} rails with {cables} cables each",
            place=f"levels.{names[1]}.radix",
        )
    pods = ceil(one.units / units_per_pod)
    below_spine = min(one.units, units_per_pod) * one.rails * cables
    up_spine = _up_ports(below_spine, spine, core)
    if below_spine + up_spine > tiers[1].radix:
        raise InputError(
            f"{below_spine} ports down and {up_spine} up are more than radix {tiers[1].radix}",
            place=f"levels.{names[1]}.down",
        )
    cores = _switches(up_spine, pods, core, names[2])
    if cores is None:
        room = core.radix // (core.parallel or 1) * units_per_pod * per_unit
        raise too_small("topology", room, accelerators, remedy=f"raise {names[2]}.radix")
    return replace(
        one,
        tiers=3,
        units_per_pod=units_per_pod,
        pods=pods,
        spines=up // cables,
        spine_cables=cables,
        cores=cores,
        core_cables=up_spine // cores,
        oversubscription=(ratio, below_spine * spine.bandwidth / (up_spine * core.bandwidth)),
    )


def _down_ports(tier: Tier, above: Tier, step: int) -> int:
    """Ports of a switch that face down, the rest facing up at the wanted oversubscription.

    Of the multiples of ``step`` that fit, the largest whose way up is a whole number of cables, if there is one.
    """
    up_per_down = tier.bandwidth / (above.oversubscription * above.bandwidth)
    most = int(tier.radix / (1 + up_per_down) + _SLACK)
    fits = range(most - most % step, 0, -step)
    whole = (down for down in fits if abs(down * up_per_down - round(down * up_per_down)) < _SLACK * tier.radix)
    return next(whole, most)


def _up_ports(below: int, tier: Tier, above: Tier) -> int:
    return max(1, ceil(below * tier.bandwidth / (above.oversubscription * above.bandwidth) - _SLACK))


def _switches(up: int, lower: int, tier: Tier, name: str) -> int | None:
    """The fewest switches that ``lower`` switches with ``up`` cables each can join, each pair by equally many."""
    if tier.parallel is not None:
        if up % tier.parallel:
            raise InputError(
                f"{up} cables up cannot be dealt out {tier.parallel} at a time", place=f"levels.{name}.parallel"
            )
        return up // tier.parallel if lower * tier.parallel <= tier.radix else None
    for switches in range(1, up + 1):
        if up % switches == 0 and lower * (up // switches) <= tier.radix:
            return switches
    return None
