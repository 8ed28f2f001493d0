"""What every link carried: the bytes of each phase, spread over the links it is routed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.replay.engine import Executions
from emulator.replay.tables import Tables
from emulator.result.schema import LinkUse
from emulator.result.tables import LinkLoad
from emulator.topology.graph import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
LinkEvents = Mapping[int, Sequence[tuple[float, float]]]
_LISTED = 24
_DIGITS = 9  # links whose loads agree to so many digits are shown as one


@dataclass(frozen=True)
class Loads:
    """Bytes carried by ``link[i]`` and by each of the ``alike[i]`` links that stand with it.

    Links with equal ``users[i]`` are used by the same groups: ``names[i]`` of those, listed once per number.
    """

    link: Ints
    bytes: Floats
    alike: Ints
    users: Ints
    names: list[tuple[str, ...]]


def phase_bytes(tables: Tables, transfers: Executions, weight: Floats) -> Floats:
    """Bytes of the largest flow of every phase row in all; execution i counts ``weight[i]`` times."""
    found = np.zeros(len(tables.phase_latency))
    uses = len(tables.variants.uses)
    pair, which = np.unique(transfers.group * uses + transfers.use, return_inverse=True)
    times = np.bincount(which.ravel(), weight, minlength=len(pair))
    start = tables.phase_start.tolist()
    for code, count in zip(pair.tolist(), times.tolist(), strict=True):
        group, use = divmod(code, uses)
        for row, amount in tables.kinds[int(tables.group_kind[group])].plans[use].rows(start[group]):
            found[row] += count * amount
    return found


def loads_of(tables: Tables, phase_bytes: Floats, size: Ints | None = None, names: Ints | None = None) -> Loads:
    """Loads from tables and the bytes of their phase rows. ``size``: how many links each link of the tables stands
    for; ``names``: the link of the topology that it is (both None: the tables are of all links)."""
    count = len(tables.capacity)
    moved = phase_bytes[tables.row_of_entry]
    carried: Floats = np.bincount(tables.phase_link, tables.phase_weight * moved, count).astype(np.float64)
    used = np.flatnonzero(carried > 0)
    users, sets = _users(tables, used)
    return Loads(
        link=used if names is None else names[used],
        bytes=carried[used],
        alike=np.ones(len(used), dtype=np.int64) if size is None else size[used],
        users=users,
        names=sets,
    )


def _users(tables: Tables, used: Ints) -> tuple[Ints, list[tuple[str, ...]]]:
    """Which groups are on each of the ``used`` links: a number per link, and the names for each number."""
    names, name_of_kind = np.unique([kind.name for kind in tables.kinds] or [""], return_inverse=True)
    name = name_of_kind.ravel()[tables.group_kind[tables.group_of_row]][tables.row_of_entry]
    number = np.zeros(len(used), dtype=np.int64)
    sets: list[tuple[str, ...]] = [()]
    for code, text in enumerate(names.tolist()):  # names are few; links are many
        here = np.zeros(len(tables.capacity), dtype=bool)
        here[tables.phase_link[name == code]] = True
        pair, number = np.unique(number * 2 + here[used], return_inverse=True)
        number = number.ravel()
        sets = [(*sets[old], text) if on else sets[old] for old, on in (divmod(p, 2) for p in pair.tolist())]
    return number, sets


@dataclass(frozen=True)
class Carriers:
    """What is routed over one link: phase ``phase[i]`` of group ``group[i]`` with ``weight[i]``.

    Groups that one of the tables stands for are told apart by ``real``.
    """

    group: Ints
    phase: Ints
    weight: Floats
    real: Ints


def carriers_on(tables: Tables, link: int) -> Carriers:
    """What is routed over a link of the tables."""
    entry = np.flatnonzero(tables.phase_link == link)
    row = np.searchsorted(tables.phase_ptr, entry, side="right") - 1
    group = np.searchsorted(tables.phase_start, row, side="right") - 1
    return Carriers(group, row - tables.phase_start[group], tables.phase_weight[entry], group)


def load_over_time(carriers: Carriers, tables: Tables, transfers: Executions, name: str) -> LinkLoad:
    """The load of a link over time. A transfer counts with its mean rate from its start to its end."""
    starts, ends, moved = [], [], []
    group_bytes: dict[str, float] = {}
    for real in np.unique(carriers.real).tolist():
        own = np.flatnonzero(carriers.real == real)
        group = int(carriers.group[own[0]])
        kind = tables.kinds[int(tables.group_kind[group])]
        weight_of = dict(zip(carriers.phase[own].tolist(), carriers.weight[own].tolist(), strict=True))
        amounts = np.zeros(len(tables.variants.uses))
        for use, plan in kind.plans.items():
            amounts[use] = sum(amount * weight_of.get(phase, 0.0) for phase, amount in plan.phases)
        mine = np.flatnonzero(transfers.group == group)
        starts.append(transfers.start[mine])
        ends.append(transfers.end[mine])
        moved.append(amounts[transfers.use[mine]])
        group_bytes[kind.name] = group_bytes.get(kind.name, 0.0) + float(moved[-1].sum())
    start, end, amount = (np.concatenate([np.empty(0), *parts]) for parts in (starts, ends, moved))
    lasting = (end > start) & (amount > 0)
    rate = amount[lasting] / (end[lasting] - start[lasting])
    times, where = np.unique(np.concatenate([start[lasting], end[lasting]]), return_inverse=True)
    change = np.bincount(where.ravel(), np.concatenate([rate, -rate]), minlength=len(times))
    begun = np.bincount(where.ravel(), np.repeat([1, -1], len(rate)), minlength=len(times))
    load = np.maximum(np.cumsum(change), 0.0)
    load[load < 1e-9 * load.max(initial=0.0)] = 0.0  # what rounding leaves of a sum that ended
    return LinkLoad(
        link=name,
        time=times,
        rate=load,
        transfers=np.cumsum(begun).astype(np.int64),
        group_bytes={group: size for group, size in sorted(group_bytes.items(), key=lambda one: -one[1]) if size > 0},
    )


def hottest(loads: Loads, topology: Topology, events: LinkEvents, step: float) -> tuple[list[LinkUse], list[int]]:
    """The links that were used most, links with equal loads as one, and their numbers. ``events`` are the capacity
    changes of links of the topology."""
    possible = _possible_bytes(loads.link, topology.capacity, events, step)
    share = loads.bytes / possible
    _, load = np.unique(_rounded(loads.bytes), return_inverse=True)
    _, capacity = np.unique(topology.capacity[loads.link], return_inverse=True)
    changes = np.isin(loads.link, list(events))
    code = load.ravel()
    for column in (capacity.ravel(), topology.link_level[loads.link], loads.users, changes.astype(np.int64)):
        code = code * (int(column.max(initial=0)) + 1) + column
    _, first, kind = np.unique(code, return_index=True, return_inverse=True)
    alike = np.bincount(kind.ravel(), loads.alike, minlength=len(first))
    order = np.lexsort((loads.link[first], -share[first]))
    found, numbers = [], []
    for k in order[:_LISTED].tolist():
        i = int(first[k])
        link = int(loads.link[i])
        found.append(
            LinkUse(
                link=topology.link_name(link), level=topology.level_names[topology.link_level[link]],
                count=int(alike[k]), capacity_bytes_per_second=float(possible[i] / step),
                bytes=float(loads.bytes[i]), utilisation=float(share[i]), groups=list(loads.names[loads.users[i]]),
            )
        )  # fmt: skip
        numbers.append(link)
    return found, numbers


def _rounded(x: Floats) -> Floats:
    scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(x)))
    return np.asarray(np.round(x * scale) / scale, dtype=np.float64)


def _possible_bytes(links: Ints, capacity: Floats, events: LinkEvents, step: float) -> Floats:
    """What each of the links could have carried during the step."""
    possible = capacity[links] * step
    for i in np.flatnonzero(np.isin(links, list(events))).tolist():
        changes = events[int(links[i])]
        ends = [min(time, step) for time, _ in changes[1:]] + [step]
        possible[i] = sum(value * (end - min(time, step)) for (time, value), end in zip(changes, ends, strict=True))
    return possible
