"""Collectives on a fabric: phases and members become weights on links, seconds and bytes per second.

**Fairness.** The rate variable of a phase is the rate of its largest flow. Its weight on a link is the sum over its
flows of ``fraction / largest fraction x share of the path on that link``: k flows of a group on one link get what k
separate flows would get there. Flows that switches merge (``Phase.tree``) count once per link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from emulator.network.collectives import AllPairs, AnyPhase, Phase
from emulator.network.collectives.phase import FIRST, LAST
from emulator.network.maxmin import Floats, Ints
from emulator.network.waits import ring_lines
from emulator.rows import offsets

_FLOWS_AT_ONCE = 1 << 18  # paths of more flows than this are summed in slabs, to bound memory
_ALIKE = 1e-9  # edges of a ring whose rates differ by less than this part are equally fast
_PAIRS_WORTH_LISTING = 32  # up to here an exchange is quicker listed, all instances at once, than summed one by one


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
    @property
    def link_src(self) -> Ints: ...
    @property
    def link_dst(self) -> Ints: ...
    def route(self, src: Ints, dst: Ints) -> Paths: ...


@runtime_checkable
class SumsPairs(Protocol):
    """A fabric that knows what an exchange between all pairs puts on its links, without listing the pairs."""

    def all_pairs(self, members: Ints) -> tuple[Ints, Floats, float] | None:
        """Links, flows on each (f64, shares summed), slowest latency; None if this group has no such sum."""


@dataclass(frozen=True, eq=False)
class BoundPhase:
    """One phase for G groups of accelerators at once.

    Group g puts ``weight[k]`` bytes on ``link[k]``, k in ``ptr[g]:ptr[g+1]`` (links ascending), for each byte of its
    largest flow, which carries ``fraction`` x S bytes. ``rate_alone`` f64[G] bytes/s of the largest flow on an idle
    network (``inf`` if there are no bytes). Seconds before the first byte: the largest of ``latency[g] - hidden[g] x
    bytes of the largest flow`` (both f64[G, J]; :mod:`.waits` says what hides latency, elsewhere J = 1 and 0).
    """

    ptr: Ints
    link: Ints
    weight: Floats
    fraction: float
    latency: Floats
    hidden: Floats
    rate_alone: Floats

    def wait(self, amount: float) -> Floats:
        """Seconds before the first byte if the largest flow carries ``amount`` bytes, f64[G]."""
        seconds: Floats = (self.latency - self.hidden * amount).max(axis=1)
        return seconds

    def seconds(self, amount: float) -> Floats:
        """Seconds on the idle fabric if the largest flow carries ``amount`` bytes, f64[G]."""
        return self.wait(amount) + amount / self.rate_alone


def bind(fabric: Fabric, members: Ints, phases: Sequence[AnyPhase]) -> tuple[BoundPhase, ...]:
    """The phases of a collective placed on a fabric, for all instances of a group.

    ``members`` i64[G, n]: accelerator of each member of each instance.
    """
    return tuple([_bind_any(fabric, members, phase) for phase in phases])


def predict(bound: Sequence[BoundPhase], size: float, instances: int = 1) -> Floats:
    """Seconds a collective of S = ``size`` bytes takes on the idle fabric, f64[G] (no phases: f64[instances] zeros)."""
    total = np.zeros(len(bound[0].latency) if bound else instances)
    for phase in bound:
        total += phase.seconds(phase.fraction * size)
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


def _bind_any(fabric: Fabric, members: Ints, phase: AnyPhase) -> BoundPhase:
    if isinstance(phase, Phase):
        return _bind_phase(fabric, members, phase)
    if isinstance(fabric, SumsPairs) and phase.n > _PAIRS_WORTH_LISTING:
        summed = [fabric.all_pairs(row) for row in members]
        known = [part for part in summed if part is not None]
        if len(known) == len(summed):
            return _from_sums(fabric, known, phase)
    return _bind_phase(fabric, members, phase.listed)


def _from_sums(fabric: Fabric, summed: Sequence[tuple[Ints, Floats, float]], phase: AllPairs) -> BoundPhase:
    ptr = offsets([len(link) for link, _, _ in summed])
    link = np.concatenate([link for link, _, _ in summed])
    weight = np.concatenate([weight for _, weight, _ in summed])
    rate = np.minimum.reduceat(fabric.capacity[link] / weight, ptr[:-1])
    latency = np.array([[latency] for _, _, latency in summed])
    return BoundPhase(ptr, link, weight, phase.each, latency, np.zeros_like(latency), rate)


def _bind_phase(fabric: Fabric, members: Ints, phase: Phase) -> BoundPhase:
    groups, flows = len(members), len(phase.src)
    links = len(fabric.capacity)
    largest = float(phase.fraction.max())
    relative = phase.fraction / largest if largest > 0 else phase.fraction
    latency = np.empty((groups, flows))
    keys: list[Ints] = []
    weights: list[Floats] = []
    passed: list[tuple[Ints, Ints]] = []  # where flows make rings: flows (of all groups) and keys on their paths
    where: Ints | None = None  # of those keys among the distinct ones, if they were all seen together
    # Flows that merge have to be seen together.
    slab = flows if phase.tree is not None else max(1, _FLOWS_AT_ONCE // groups)
    for begin in range(0, flows, slab):
        part = slice(begin, begin + slab)
        src, dst = members[:, phase.src[part]], members[:, phase.dst[part]]
        paths = fabric.route(src.ravel(), dst.ravel())
        latency[:, part] = paths.latency.reshape(src.shape)
        count = np.diff(paths.ptr)
        flow = np.repeat(np.arange(src.size), count)
        group, number = np.divmod(flow, src.shape[1])
        key, weight = group * links + paths.link, paths.share * relative[part][number]
        if phase.ring > 1:
            used = weight > 0
            passed.append(((group * flows + begin + number)[used], key[used]))
        if phase.tree is not None:
            used = _used(fabric, phase, number, paths.link, src.ravel()[flow], dst.ravel()[flow])
            key, weight = _merged(phase.tree, number[used], key[used], weight[used])
        key, weight, where = _sum_by_key(key, weight, groups * links)
        keys.append(key)
        weights.append(weight)
    if len(keys) == 1:
        key, weight = keys[0], weights[0]
    else:
        key, weight, _ = _sum_by_key(np.concatenate(keys), np.concatenate(weights), groups * links)
        where = None
    group, link = np.divmod(key, links)
    ptr = np.searchsorted(group, np.arange(groups + 1))
    rate = np.full(groups, np.inf)
    np.minimum.at(rate, group, fabric.capacity[link] / weight)
    if phase.ring == 1:
        first = _latency(latency, phase)[:, np.newaxis]
        return BoundPhase(ptr, link, weight, largest, first, np.zeros_like(first), rate)
    level = np.full((groups, flows), np.inf)
    alone = fabric.capacity[link] / weight
    for flow, on in passed:
        place = _places(key, on, groups * links) if where is None else where
        np.minimum.at(level.ravel(), flow, alone[place])
    shape = (groups, -1, phase.ring)
    slack = _slack(level, rate) / phase.messages
    waits = ring_lines(latency.reshape(shape), slack.reshape(shape), phase.messages)
    return BoundPhase(ptr, link, weight, largest, *waits, rate)


def _slack(level: Floats, rate: Floats) -> Floats:
    """Seconds per byte of the largest flow that each flow is faster than the slowest: ``level`` f64[G, flows] are the
    rates that their links would let through, ``rate`` f64[G] the lowest."""
    slowest = 1 / rate[:, np.newaxis]
    saved = slowest - 1 / level
    return np.where(saved > _ALIKE * slowest, saved, 0.0)


def _used(fabric: Fabric, phase: Phase, number: Ints, link: Ints, src: Ints, dst: Ints) -> NDArray[np.bool_]:
    """Which entries of the paths a flow really uses (``Phase.part``)."""
    assert phase.part is not None
    part = phase.part[number]
    unused: NDArray[np.bool_] = (part == FIRST) & (fabric.link_src[link] != src) | (part == LAST) & (
        fabric.link_dst[link] != dst
    )
    return ~unused


def _merged(tree: Ints, number: Ints, key: Ints, weight: Floats) -> tuple[Ints, Floats]:
    """Entries of one tree on one link (of one group) made one, the largest."""
    merge = tree[number] >= 0
    pair = np.stack([tree[number[merge]], key[merge]])
    order = np.lexsort(pair)
    pair, sorted_weight = pair[:, order], weight[merge][order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (pair[:, 1:] != pair[:, :-1]).any(axis=0)
    largest = np.maximum.reduceat(sorted_weight, np.flatnonzero(first)) if len(order) else sorted_weight
    return np.concatenate([key[~merge], pair[1, first]]), np.concatenate([weight[~merge], largest])


def _sum_by_key(key: Ints, weight: Floats, keys: int) -> tuple[Ints, Floats, Ints | None]:
    """Keys (below ``keys``) that have weight, ascending, their sums, and, if it was found out on the way, which of them
    each entry with weight has."""
    if keys <= 4 * len(key):  # dense: counting beats sorting
        total = np.bincount(key, weight, keys).astype(np.float64)
        present = np.flatnonzero(total)
        return present, total[present], None
    present, which = np.unique(key[weight > 0], return_inverse=True)
    return present, np.bincount(which, weight[weight > 0], len(present)).astype(np.float64), which


def _places(key: Ints, wanted: Ints, keys: int) -> Ints:
    """Where each of ``wanted`` stands in ``key``, which has them all, ascending and below ``keys``."""
    if keys > 4 * len(wanted):
        return np.searchsorted(key, wanted)
    place = np.empty(keys, dtype=np.int64)
    place[key] = np.arange(len(key))
    return place[wanted]


def _latency(latency: Floats, phase: Phase) -> Floats:
    """Seconds before the first byte of a phase without rings (f64[G, flows] -> f64[G])."""
    if not phase.chains:
        slowest: Floats = latency.max(axis=1)
        return slowest
    with_none = np.concatenate([latency, np.zeros((len(latency), 1))], axis=1)  # number -1 takes no time
    total = np.zeros(len(latency))
    for chains in phase.chains:
        so_far = np.zeros((len(latency), len(chains)))
        for flows in chains.T:
            so_far += with_none[:, flows]
        total += so_far.max(axis=1)
    return total
