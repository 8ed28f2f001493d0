"""Dragonflies: groups of routers, all joined inside a group, and all groups joined to each other.

After Kim, Dally, Scott and Abts (2008): p accelerators, a routers per group, h cables between groups at each router.
Every two groups are joined by the same number of cables. The j-th of the m cables to the group o places further on is
port ``(o - 1) m + j`` of a group, h ports at each router in order; so all groups look alike. Routes are minimal, with
at most one cable between groups; detours through a third group (Valiant, UGAL) are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from emulator.errors import InputError
from emulator.topology.graph import Facts, Floats, Ints, LinkTable, NodeNames, Routes, assemble, check_size, crossing
from emulator.topology.hashing import hashed, pick
from emulator.topology.sizing import too_small
from emulator.topology.spec import Dragonfly, TopologyFile


@dataclass(frozen=True, eq=False)
class DragonflyRouter:
    """Link ids: ``host`` [2 (up, down), N], ``local`` [groups, a, a], ``far`` [groups, offset, choice].

    ``leave``, ``enter`` [offset, choice]: the router of the source and the target group at a cable to the group
    ``offset`` places on; ``count``: parallel cables there (0: no such choice). ``latencies``: host, local, global.
    ``rule``: ``spread`` over shortest paths, ``minimal-adaptive`` over all cables between the two groups, ``ecmp`` for
    ``flows`` hashed flows on shortest paths.
    """

    host: Ints
    local: Ints
    far: Ints
    leave: Ints
    enter: Ints
    count: Ints
    hosts: int
    latencies: tuple[float, float, float]
    rule: str
    flows: int
    seed: int

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        groups, routers = self.local.shape[:2]
        (group, a), (other, b) = (divmod(ends // self.hosts, routers) for ends in (src, dst))
        flows, one = np.arange(len(src)), np.ones(len(src))
        first: list[tuple[Ints, Ints, Floats]] = [(flows, self.host[0, src], one)]
        last: list[tuple[Ints, Ints, Floats]] = [(flows, self.host[1, dst], one)]
        near = np.flatnonzero((group == other) & (a != b))
        first.append((near, self.local[group[near], a[near], b[near]], one[near]))
        latency = np.full(len(src), 2 * self.latencies[0])
        latency[near] += self.latencies[1]
        away = np.flatnonzero(group != other)
        if len(away):
            offset = (other[away] - group[away]) % groups
            leave, enter = self.leave[offset], self.enter[offset]  # [away, choice]
            out, in_ = leave != a[away, None], enter != b[away, None]
            share = self._shares(src[away], dst[away], offset, out.astype(np.int64) + in_)
            hops = np.where(share > 0, out.astype(np.int64) + in_, 0).max(axis=1)
            latency[away] += self.latencies[2] + hops * self.latencies[1]
            row, choice = np.nonzero(share > 0)
            flow, part = away[row], share[row, choice]
            far = self.far[group[flow], offset[row], choice]
            for turns, at, ends, parts in (
                (out, group, (a[flow], leave[row, choice]), first),
                (in_, other, (enter[row, choice], b[flow]), last),
            ):
                some = turns[row, choice]
                link = self.local[at[flow][some], ends[0][some], ends[1][some]]
                parts.append((flow[some], link, part[some]))
            first.append((flow, far, part))
        return assemble(len(src), first + last[::-1], latency)

    def _shares(self, src: Ints, dst: Ints, offset: Ints, hops: Ints) -> Floats:
        """Part of each flow on each choice of cable, [flows, choices]."""
        weight = self.count[offset].astype(np.float64)
        if self.rule != "minimal-adaptive":
            least = np.where(weight > 0, hops, 3).min(axis=1)
            weight[hops > least[:, None]] = 0.0
        total = weight.sum(axis=1, keepdims=True)
        if self.rule != "ecmp":
            return np.asarray(weight / total)
        cable = pick_below(hashed(self.seed, src[:, None], dst[:, None], np.arange(self.flows)), total)
        choice = (cable[:, :, None] >= np.cumsum(weight, axis=1)[:, None, :]).sum(axis=2)
        picked = np.zeros_like(weight)
        np.add.at(picked, (np.arange(len(src))[:, None], choice), 1 / self.flows)
        return picked


def pick_below(words: Any, totals: Floats) -> Ints:
    """A number below ``totals[i]`` for every word of row i."""
    return pick(words, 1 << 53) % totals.astype(np.int64)


def build(name: str, level: Dragonfly, accelerators: int, file: TopologyFile) -> dict[str, Any]:
    """The fields of a Topology for a dragonfly. Raises InputError (without the file's name)."""
    p, a, h = level.hosts, level.routers, level.globals
    groups, place = level.groups or ceil(accelerators / (p * a)), f"levels.{name}"
    between = level.between or max(a * h // max(groups - 1, 1), 1)
    most = min(groups, a * h // between + 1) * p * a
    if between * (groups - 1) > a * h:
        raise InputError(
            f"{groups:,} groups need {between * (groups - 1):,} global ports each, {a} routers have {a * h:,}",
            place=place + (".groups" if level.groups else ".globals"),
            remedy=f"this dragonfly holds {most:,} accelerators; give it more globals or larger groups",
        )
    if most < accelerators:
        raise too_small("dragonfly", most, accelerators, place=place + ".groups")
    check_size(2 * accelerators + groups * a * (a + h) + groups * groups, name)
    table = LinkTable()
    host = np.arange(accelerators)
    router = accelerators + np.arange(groups * a).reshape(groups, a)
    label = level.links or name
    hosts = np.stack(table.add_pair(host, router.ravel()[host // p], label, level.capacity, level.latency))
    local_latency, global_latency = (
        float(level.latency if t is None else t) for t in (level.local_latency, level.global_latency)
    )
    rates = [(rate or level.bandwidth) * level.efficiency for rate in (level.local_bandwidth, level.global_bandwidth)]
    low, high = np.triu_indices(a, 1)
    local = np.full((groups, a, a), -1, dtype=np.int64)
    up, down = table.add_pair(router[:, low], router[:, high], f"{label} local", rates[0], local_latency)
    local[:, low, high], local[:, high, low] = up.reshape(groups, -1), down.reshape(groups, -1)
    leave, enter, count = _cables(groups, a, h, between)
    far = np.full((groups, *count.shape), -1, dtype=np.int64)
    for offset in range(1, groups):
        for choice in np.flatnonzero(count[offset]):
            ends = router[:, leave[offset, choice]], np.roll(router, -offset, axis=0)[:, enter[offset, choice]]
            many = int(count[offset, choice])
            far[:, offset, choice] = table.add(f"{label} global", *ends, rates[1], global_latency, many)
    columns = table.columns()
    left = a * h - between * (groups - 1) if level.between is None and groups > 1 else 0
    return columns | {
        "accelerators": accelerators,
        "node_names": NodeNames([(file.called, (accelerators,)), (name, (groups, a) if groups > 1 else (a,))]),
        "level_names": tuple(table.level_names),
        "switches": np.ones(groups * a, dtype=np.int64),
        "domain": np.zeros(accelerators, dtype=np.int64),
        "router": DragonflyRouter(
            hosts, local, far, leave, enter, count, p, (float(level.latency), local_latency, global_latency),
            file.routing, file.flows_per_pair, file.seed,
        ),
        "facts": _facts(columns, groups, a, p, accelerators, (leave, enter, count)),
        "built": f"dragonfly of {accelerators:,} {file.called}s, {groups:,} group{'s' * (groups > 1)} of {a} routers"
        + (f", {between} cables between every two groups" if groups > 1 else ""),
        "findings": (f"{name}: {left} of {a * h} global ports per group stay unused",) if left > 0.05 * a * h else (),
    }  # fmt: skip


def _cables(groups: int, a: int, h: int, m: int) -> tuple[Ints, Ints, Ints]:
    """Routers at both ends of the m cables to the group ``offset`` on, and how many join these two [offset, choice]."""
    if groups == 1:
        nothing = np.zeros((1, 1), dtype=np.int64)
        return nothing, nothing, nothing
    offset = np.arange(1, groups)[:, None]
    leave = ((offset - 1) * m + np.arange(m)) // h
    enter = ((groups - offset - 1) * m + np.arange(m)) // h
    rows = [np.unique(leave[i] * a + enter[i], return_counts=True) for i in range(groups - 1)]
    width = max(len(pair) for pair, _ in rows)
    pairs, count = (np.zeros((groups, width), dtype=np.int64) for _ in range(2))
    for i, (pair, many) in enumerate(rows, start=1):
        pairs[i, : len(pair)], count[i, : len(pair)] = pair, many
    return pairs // a, pairs % a, count


def _facts(
    columns: dict[str, Any], groups: int, a: int, p: int, accelerators: int, cables: tuple[Ints, Ints, Ints]
) -> Facts:
    """Diameter from the cabling; bisection as the cheaper of two regular cuts. Not known where places are empty."""
    if accelerators == 1:
        return Facts(0, None, "one accelerator")
    if accelerators < groups * a * p:
        return Facts()
    group, inside = np.divmod(np.concatenate([np.arange(accelerators) // p, np.arange(groups * a)]), a)
    cuts = [
        (crossing(columns, side), f"an upper bound: halves of {what}")
        for side, what, even in ((group < groups // 2, "the groups", groups), (inside < a // 2, "every group", a))
        if even % 2 == 0
    ]
    diameter = 2 + (a > 1)
    if groups > 1:
        leave, enter, count = (column[1:, :, None, None] for column in cables)
        router = np.arange(a)
        turns = (leave != router[:, None]).astype(np.int64) + (enter != router)
        diameter = 3 + int(np.where(count > 0, turns, 3).min(axis=1).max())
    return Facts(diameter, *min(cuts)) if cuts else Facts(diameter)
