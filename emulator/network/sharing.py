"""Who is to blame: what sharing links costs a flow, and with whom it shares them.

A flow that gets rate ``x`` where it would get ``R`` on the idle network loses ``1 - x / R`` of every second: over a
flow that adds up to its time minus its time alone, exactly. While a link on its way is slower than usual, so that alone
it would get ``N`` < ``R``, ``1 - N / R`` is due to that. The rest goes to the flows on its bottlenecks, the links
that are full and on which nobody is faster (every slowed flow has one: Bertsekas and Gallager, *Data Networks*, 6.5.2);
several count alike. On each the loss is split as its bytes are between all but the flow itself.

The others are told apart as *kin*, who have a member in common with the flow, and strangers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from emulator.network.maxmin import SMALL_ENTRIES, SMALL_FLOWS, Floats
from emulator.network.routes import Route

_TIE = 1e-9  # rates and loads this close, relatively, are equal but for rounding
_NOTHING = 1e-12  # a loss this small is rounding


class Charge(NamedTuple):
    """What a flow loses per second, by whom it is due to: kin, strangers, links slower than usual."""

    kin: float
    strangers: float
    slower: float


@dataclass(frozen=True)
class Place:
    """One real link behind a link of the network, as a flow on a route sees it.

    ``own``: bytes the flow itself puts there for each byte of its own; ``kin``: the same by number of the route, for
    those of its kin, the flow's own route among them.
    """

    own: float
    kin: tuple[tuple[int, float], ...]


class Sharers(Protocol):
    """Who is whose kin (:class:`emulator.replay.kin.Kin`). A flow of the network may stand for many alike."""

    def places(self, route: Route, link: int) -> Sequence[Place]:
        """The real links that a flow on ``route`` uses behind ``link``, at least one."""


def charges(sharers: Sharers, capacity: Floats, routes: Sequence[Route], rates: Sequence[float]) -> list[Charge | None]:
    """What each of some flows loses (None: nothing), given their max-min fair rates.

    The flows are all there are on their links. ``capacity``: bytes/s of every link.
    """
    found: list[Charge | None] = [None] * len(routes)
    slowed = [rate < route.rate_full * (1 - _NOTHING) for route, rate in zip(routes, rates, strict=True)]
    if not any(slowed):
        return found
    few = len(routes) <= SMALL_FLOWS and sum([len(route.links) for route in routes]) <= SMALL_ENTRIES
    find = _few_bottlenecks if few else _many_bottlenecks
    share, places = [0.0] * len(routes), [0] * len(routes)
    of_route: dict[int, float] = {}
    for route, rate in zip(routes, rates, strict=True):
        of_route[route.index] = of_route.get(route.index, 0.0) + rate
    for i, link, load in find(capacity, routes, rates, slowed):
        for place in sharers.places(routes[i], link):
            own = place.own * rates[i]
            others = load - own
            if others > _TIE * load:
                kin = sum([weight * of_route[number] for number, weight in place.kin if number in of_route]) - own
                share[i] += kin / others
                places[i] += 1
    for i, route in enumerate(routes):
        if slowed[i]:
            mine = min(max(share[i] / places[i], 0.0), 1.0) if places[i] else 0.0
            slower = 1 - route.rate_now / route.rate_full
            lost = 1 - rates[i] / route.rate_full - slower
            found[i] = Charge(lost * mine, lost * (1 - mine), slower)
    return found


def _few_bottlenecks(
    capacity: Floats, routes: Sequence[Route], rates: Sequence[float], slowed: Sequence[bool]
) -> Iterator[tuple[int, int, float]]:
    """The bottlenecks of the slowed flows: number of the flow, link, bytes/s on the link."""
    used: dict[int, float] = {}
    fastest: dict[int, float] = {}
    for route, rate in zip(routes, rates, strict=True):
        for link, weight in zip(route.links, route.weights, strict=True):
            used[link] = used.get(link, 0.0) + weight * rate
            fastest[link] = max(fastest.get(link, 0.0), rate)
    for i, route in enumerate(routes):
        if slowed[i]:
            for link in route.links:
                if fastest[link] <= rates[i] * (1 + _TIE) and used[link] >= capacity[link] * (1 - _TIE):
                    yield i, link, used[link]


def _many_bottlenecks(
    capacity: Floats, routes: Sequence[Route], rates: Sequence[float], slowed: Sequence[bool]
) -> Iterable[tuple[int, int, float]]:
    """The same in numpy."""
    flow = np.repeat(np.arange(len(routes)), [len(route.links) for route in routes])
    links, which = np.unique(np.concatenate([route.link_array for route in routes]), return_inverse=True)
    rate = np.array(rates)[flow]
    used = np.bincount(which, np.concatenate([route.weight_array for route in routes]) * rate)
    fastest = np.zeros(len(links))
    np.maximum.at(fastest, which, rate)
    full = used >= capacity[links] * (1 - _TIE)
    at = np.flatnonzero(np.array(slowed)[flow] & full[which] & (fastest[which] <= rate * (1 + _TIE)))
    return zip(flow[at].tolist(), links[which[at]].tolist(), used[which[at]].tolist(), strict=True)


def rate_of_one(sharers: Sharers, capacity: Floats, route: Route) -> float:
    """Rate of one flow on a route if it were alone on the network as it is now, bytes/s."""
    return min([float(capacity[link]) / max([p.own for p in sharers.places(route, link)]) for link in route.links])
