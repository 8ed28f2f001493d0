"""Collectives on a fabric: phases and members become weights on links, seconds and bytes per second.

**Fairness.** The rate variable of a phase is the rate of its largest flow. Its weight on a link is the sum over its
flows of ``fraction / largest fraction x share of the path on that link``: k flows of a group on one link get what k
separate flows would get there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from emulator.network import collectives
from emulator.network.collectives import Phase
from emulator.network.maxmin import Floats, Ints

_FLOWS_AT_ONCE = 1 << 18  # paths of more flows than this are summed in slabs, to bound memory


class Paths(Protocol):
    """Where flows go (``emulator.topology`` provides it): flow f has entries ``ptr[f]:ptr[f+1]``."""

    @property
    def ptr(self) -> Ints: ...
    @property
    def link(self) -> Ints: ...
    @property
    def share(self) -> Floats: ...
    @property
    def latency(self) -> Floats: ...


class Fabric(Protocol):
    """What the network model needs to know of a topology."""

    @property
    def capacity(self) -> Floats: ...
    @property
    def domain(self) -> Ints: ...
    def route(self, src: Ints, dst: Ints) -> Paths: ...


@dataclass(frozen=True, eq=False)
class BoundPhase:
    """One phase for G groups of accelerators at once.

    Group g puts ``weight[k]`` bytes on ``link[k]``, k in ``ptr[g]:ptr[g+1]`` (links ascending), for each byte of its
    largest flow, which carries ``fraction`` x S bytes. ``latency`` f64[G] seconds before the first byte; ``rate_alone``
    f64[G] bytes/s of the largest flow on an idle network (``inf`` if there are no bytes).
    """

    ptr: Ints
    link: Ints
    weight: Floats
    fraction: float
    latency: Floats
    rate_alone: Floats


def bind(fabric: Fabric, members: Ints, phases: Sequence[Phase]) -> tuple[BoundPhase, ...]:
    """The phases of a collective placed on a fabric, for all instances of a group.

    ``members`` i64[G, n]: accelerator of each member of each instance.
    """
    return tuple([_bind_phase(fabric, members, phase) for phase in phases])


def predict(bound: Sequence[BoundPhase], size: float, instances: int = 1) -> Floats:
    """Seconds a collective of S = ``size`` bytes takes on the idle fabric, f64[G] (no phases: f64[instances] zeros)."""
    total = np.zeros(len(bound[0].latency) if bound else instances)
    for phase in bound:
        total += phase.latency + phase.fraction * size / phase.rate_alone
    return total


def domain_pattern(fabric: Fabric, members: Ints) -> Ints:
    """Labels of the members' servers, i64[G, n], in order of first appearance in each group.

    Groups with equal rows have the same structure and can share phases.
    """
    domain = fabric.domain[members]
    place = np.arange(members.shape[1])
    order = np.argsort(domain, axis=1, kind="stable")
    ordered = np.take_along_axis(domain, order, axis=1)
    begins = np.ones(domain.shape, dtype=bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    begin = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    first = np.empty_like(domain)  # of each member: the first member with the same domain
    np.put_along_axis(first, order, np.take_along_axis(order, begin, axis=1), axis=1)
    label: Ints = np.cumsum(first == place, axis=1) - 1
    return np.take_along_axis(label, first, axis=1)


def fastest(
    fabric: Fabric, members: Ints, collective: str, size: float, *, root: int = 0, splits: Floats | None = None
) -> tuple[str, tuple[BoundPhase, ...]]:
    """The algorithm with the least predicted time for S = ``size`` bytes, with its bound phases.

    ``members`` i64[G, n]: instances of one domain pattern (:func:`domain_pattern`); the slowest instance counts. Of
    equal ones (to 1e-9) the first in the order of :func:`.collectives.algorithms` is taken.
    """
    n = members.shape[1]
    domains = domain_pattern(fabric, members[:1])[0]
    best: tuple[float, str, tuple[BoundPhase, ...]] | None = None
    for name in collectives.algorithms(collective, n, domains):
        bound = bind(
            fabric, members, collectives.phases(collective, name, n, domains=domains, root=root, splits=splits)
        )
        seconds = float(predict(bound, size).max())
        if best is None or seconds < best[0] * (1 - 1e-9):
            best = (seconds, name, bound)
    assert best is not None  # every collective has an algorithm for any group
    return best[1], best[2]


def _bind_phase(fabric: Fabric, members: Ints, phase: Phase) -> BoundPhase:
    groups, flows = len(members), len(phase.src)
    links = len(fabric.capacity)
    largest = float(phase.fraction.max())
    relative = phase.fraction / largest if largest > 0 else phase.fraction
    latency = np.empty((groups, flows))
    keys: list[Ints] = []
    weights: list[Floats] = []
    slab = max(1, _FLOWS_AT_ONCE // groups)
    for begin in range(0, flows, slab):
        part = slice(begin, begin + slab)
        src, dst = members[:, phase.src[part]], members[:, phase.dst[part]]
        paths = fabric.route(src.ravel(), dst.ravel())
        latency[:, part] = paths.latency.reshape(src.shape)
        count = np.diff(paths.ptr)
        group = np.repeat(np.arange(groups), src.shape[1])
        bytes_of = np.tile(relative[part], groups)
        weight = paths.share * np.repeat(bytes_of, count)
        key, weight = _sum_by_key(np.repeat(group, count) * links + paths.link, weight, groups * links)
        keys.append(key)
        weights.append(weight)
    key, weight = _sum_by_key(np.concatenate(keys), np.concatenate(weights), groups * links)
    group, link = np.divmod(key, links)
    ptr = np.searchsorted(group, np.arange(groups + 1))
    rate = np.full(groups, np.inf)
    np.minimum.at(rate, group, fabric.capacity[link] / weight)
    return BoundPhase(ptr, link, weight, largest, _latency(latency, phase), rate)


def _sum_by_key(key: Ints, weight: Floats, keys: int) -> tuple[Ints, Floats]:
    """Keys (below ``keys``) that have weight, ascending, and their sums."""
    if keys <= 4 * len(key):  # dense: counting beats sorting
        total = np.bincount(key, weight, keys).astype(np.float64)
        present = np.flatnonzero(total)
        return present, total[present]
    present, which = np.unique(key[weight > 0], return_inverse=True)
    return present, np.bincount(which, weight[weight > 0], len(present)).astype(np.float64)


def _latency(latency: Floats, phase: Phase) -> Floats:
    """``times`` x the largest sum of ``window`` flows in a row, rings of ``block`` flows (f64[G, flows] -> f64[G])."""
    rings = latency.reshape(len(latency), -1, phase.block)
    around = np.concatenate([rings, rings], axis=2)
    total = np.cumsum(np.concatenate([np.zeros((*rings.shape[:2], 1)), around], axis=2), axis=2)
    # total[k] is the sum of the first k flows, so two of them `window` apart give the sum of a window.
    sums = total[:, :, phase.window : phase.window + phase.block] - total[:, :, : phase.block]
    slowest: Floats = phase.times * sums.max(axis=(1, 2))
    return slowest
