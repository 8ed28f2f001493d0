"""Max-min fair rates: what many flows get from links they share.

All rates rise together like water in connected basins. When a link is full, the flows on it stop there and the rest
rise on. A flow may be a group of real flows that move in step (a collective); its weight on a link says how many bytes
cross that link for each byte of its own.

In symbols: with rates ``x`` (one per flow), weights ``a[f, l] > 0`` and capacities ``c[l]``, maximise the sorted rates
lexicographically subject to ``sum_f a[f, l] x[f] <= c[l]``. Link ``l`` fills when the common level reaches
``(c[l] - used by stopped flows) / (weight of the rising flows)`` (Bertsekas and Gallager, *Data Networks*, 6.5.2).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Below these sizes a heap of Python floats beats the fixed cost of numpy calls (measured: benchmarks/solver.py).
SMALL_FLOWS = 30
SMALL_ENTRIES = 150

_TIE = 1e-12  # levels this close, relatively, are one level: it only decides how many rounds there are


def solve(capacity: Floats, ptr: Ints, link: Ints, weight: Floats) -> Floats:
    """Max-min fair rate of every flow.

    ``capacity`` f64[L] bytes/s, positive. Flow ``f`` puts ``weight[k]`` bytes on ``link[k]`` for each byte of its own,
    for ``k`` in ``ptr[f]:ptr[f + 1]``; a link occurs at most once in a flow. Returns f64[F] bytes/s; a flow without
    links is not limited (``inf``).

    Raises ValueError if a capacity or a weight in use is not a positive finite number.
    """
    used = capacity[link]
    if not (np.all(used > 0) and np.all(np.isfinite(used))):
        bad = link[~((used > 0) & np.isfinite(used))][0]
        raise ValueError(f"capacity of link {bad} must be positive and finite, not {capacity[bad]}")
    if not (np.all(weight > 0) and np.all(np.isfinite(weight))):
        raise ValueError("weights of flows on links must be positive and finite")
    flows = len(ptr) - 1
    if flows <= SMALL_FLOWS and len(link) <= SMALL_ENTRIES:
        bounds, links, weights = ptr.tolist(), link.tolist(), weight.tolist()
        spans = [slice(bounds[f], bounds[f + 1]) for f in range(flows)]
        rates = solve_small(capacity, [links[span] for span in spans], [weights[span] for span in spans])
        return np.array(rates, dtype=np.float64)
    return solve_rounds(capacity, ptr, link, weight)


def solve_small(
    capacity: Sequence[float] | Floats, links: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]
) -> list[float]:
    """:func:`solve` for a few flows, unchecked: one link after another, from a heap of fill levels.

    ``links[f]`` and ``weights[f]`` belong to flow ``f``. A level in the heap may be out of date, but levels only rise,
    so it is a lower bound and is renewed when it comes to the top.
    """
    left: dict[int, float] = {}  # capacity that stopped flows leave
    members: dict[int, list[tuple[int, float]]] = {}
    for flow, (flow_links, flow_weights) in enumerate(zip(links, weights, strict=True)):
        for link, weight in zip(flow_links, flow_weights, strict=True):
            if link in members:
                members[link].append((flow, weight))
            else:
                members[link] = [(flow, weight)]
                left[link] = float(capacity[link])
    rates = [-1.0 if flow_links else inf for flow_links in links]
    rising = sum(1 for rate in rates if rate < 0)
    heap = [(left[link] / sum([w for _, w in on]), link) for link, on in members.items()]
    heapq.heapify(heap)
    level = 0.0
    while rising:
        bound, link = heap[0]
        live = [member for member in members[link] if rates[member[0]] < 0]
        if not live:
            heapq.heappop(heap)
            continue
        # Rounding may leave a hair less than what rising flows already have: the level never falls.
        fill = max(left[link] / sum([w for _, w in live]), level)
        if fill > bound * (1 + 1e-14):
            members[link] = live
            heapq.heapreplace(heap, (fill, link))
            continue
        heapq.heappop(heap)
        level = fill
        for flow, _ in live:
            rates[flow] = fill
            rising -= 1
            for other, weight in zip(links[flow], weights[flow], strict=True):
                left[other] -= weight * fill
    return rates


def solve_rounds(capacity: Floats, ptr: Ints, link: Ints, weight: Floats) -> Floats:
    """:func:`solve` for many flows, unchecked: rounds of local bottlenecks in numpy.

    A link is a local bottleneck when every rising flow on it has its lowest level there. Such a link fills at that
    level whatever happens elsewhere, because levels only rise as other flows stop lower. So all local bottlenecks are
    settled in one round, and some tens of rounds do what would take one round per distinct level.
    """
    if len(capacity) > 2 * len(link):  # few of many links in use: work on those only
        used, link = np.unique(link, return_inverse=True)
        capacity = capacity[used]
    links = len(capacity)
    left = capacity.astype(np.float64)
    level = np.zeros(links)
    rates = np.full(len(ptr) - 1, inf)
    count = np.diff(ptr)
    flow = np.flatnonzero(count)  # rising flows, then per flow its number of entries, per entry its link and weight
    count = count[flow]
    while len(flow):
        load = np.bincount(link, weight, links)
        fill = np.divide(left, load, out=np.full(links, inf), where=load > 0)
        level = np.maximum(level, fill)  # rounding may leave a hair less than before: the level never falls
        entry_level = level[link]
        first = np.cumsum(count) - count
        lowest = np.minimum.reduceat(entry_level, first)
        entry_lowest = np.repeat(lowest, count)
        bottleneck = np.ones(links, dtype=bool)
        bottleneck[link[entry_level > entry_lowest * (1 + _TIE)]] = False
        stops = np.logical_or.reduceat(bottleneck[link], first)
        rates[flow[stops]] = lowest[stops]
        entry_stops = np.repeat(stops, count)
        left -= np.bincount(link[entry_stops], weight[entry_stops] * entry_lowest[entry_stops], links)
        link, weight = link[~entry_stops], weight[~entry_stops]
        flow, count = flow[~stops], count[~stops]
    return rates
