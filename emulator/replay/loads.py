"""What every link carried: the bytes of each phase, spread over the links it is routed on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.replay.engine import Executions
from emulator.replay.tables import Tables
from emulator.result.schema import LinkUse
from emulator.topology.graph import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_LISTED = 24
_DIGITS = 9  # links whose loads agree to so many digits are shown as one


@dataclass(frozen=True)
class Loads:
    """Bytes carried by ``link[i]`` and by each of the ``alike[i]`` links that stand with it."""

    link: Ints
    bytes: Floats
    alike: Ints
    users: list[frozenset[str]]


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
    row = np.repeat(np.arange(len(tables.phase_latency)), np.diff(tables.phase_ptr))
    carried: Floats = np.bincount(tables.phase_link, tables.phase_weight * phase_bytes[row], count).astype(np.float64)
    used = np.flatnonzero(carried > 0)
    users = _users(tables, row)
    return Loads(
        link=used if names is None else names[used],
        bytes=carried[used],
        alike=np.ones(len(used), dtype=np.int64) if size is None else size[used],
        users=[users[link] for link in used.tolist()],
    )


def _users(tables: Tables, row: Ints) -> dict[int, frozenset[str]]:
    """Names of the groups on each link."""
    name_of_kind = np.array([kind.name for kind in tables.kinds] or [""])
    names, code = np.unique(name_of_kind, return_inverse=True)
    group = np.repeat(np.arange(len(tables.group_kind)), np.diff(tables.phase_start))[row]
    pairs = np.unique(tables.phase_link * len(names) + code.ravel()[tables.group_kind[group]])
    users: dict[int, set[str]] = {}
    for link, name in zip((pairs // len(names)).tolist(), (pairs % len(names)).tolist(), strict=True):
        users.setdefault(link, set()).add(str(names[name]))
    return {link: frozenset(found) for link, found in users.items()}


def hottest(loads: Loads, tables: Tables, topology: Topology, step: float) -> tuple[list[LinkUse], int]:
    """The links that were used most, links with equal loads as one, and how many links carried anything."""
    possible = _possible_bytes(topology.capacity, tables.link_events, step)
    share = loads.bytes / possible[loads.link] if step > 0 else np.zeros(len(loads.link))
    merged: dict[tuple[object, ...], list[int]] = {}
    for i in np.lexsort((loads.link, -share)).tolist():
        link = int(loads.link[i])
        key = (
            int(topology.link_level[link]), float(topology.capacity[link]), link in tables.link_events,
            f"{loads.bytes[i]:.{_DIGITS}g}", loads.users[i],
        )  # fmt: skip
        merged.setdefault(key, []).append(i)
    found = []
    for members in list(merged.values())[:_LISTED]:
        i = members[0]
        link = int(loads.link[i])
        found.append(
            LinkUse(
                link=topology.link_name(link), level=topology.level_names[topology.link_level[link]],
                count=int(loads.alike[members].sum()), capacity_bytes_per_second=float(topology.capacity[link]),
                bytes=float(loads.bytes[i]), utilisation=float(share[i]), groups=sorted(loads.users[i]),
            )
        )  # fmt: skip
    return found, int(loads.alike.sum())


def _possible_bytes(capacity: Floats, events: dict[int, tuple[tuple[float, float], ...]], step: float) -> Floats:
    """What every link could have carried during the step."""
    possible = capacity * step
    for link, changes in events.items():
        ends = [min(time, step) for time, _ in changes[1:]] + [step]
        possible[link] = sum(value * (end - min(time, step)) for (time, value), end in zip(changes, ends, strict=True))
    return possible
