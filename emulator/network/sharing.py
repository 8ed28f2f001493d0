"""Who is to blame: what sharing links costs a flow, and with whom it shares them.

A flow that gets rate ``x`` where it would get ``R`` on the idle network loses ``1 - x / R`` of every second: over a
flow that adds up to its time minus its time alone, exactly. While a link on its way is slower than usual, so that alone
it would get ``N`` < ``R``, ``1 - N / R`` is due to that. The rest goes to the flows on its bottlenecks, the links
that are full and on which nobody is faster (every slowed flow has one: Bertsekas and Gallager, *Data Networks*, 6.5.2);
several count alike. On each the loss is split as its bytes are between all but the flow itself.

The others are told apart as *kin*, who have a member in common with the flow, and strangers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


def charges(
    sharers: Sharers, capacity: Sequence[float], routes: Sequence[Route], rates: Sequence[float]
) -> list[Charge | None]:
    """What each of the flows of a component loses (None: nothing), given their max-min fair rates."""
    slowed = [i for i, route in enumerate(routes) if rates[i] < route.rate_full * (1 - _NOTHING)]
    found: list[Charge | None] = [None] * len(routes)
    if not slowed:
        return found
    loads = _Loads(routes, rates)
    for i in slowed:
        route, rate = routes[i], rates[i]
        share = _share_of_kin(sharers, capacity, loads, route, rate)
        slower = 1 - route.rate_now / route.rate_full
        lost = 1 - rate / route.rate_full - slower
        found[i] = Charge(lost * share, lost * (1 - share), slower)
    return found


class _Loads:
    """Bytes/s on each link and the fastest flow there, and the rate of all flows of each route together."""

    __slots__ = ("fastest", "of_route", "used")

    def __init__(self, routes: Sequence[Route], rates: Sequence[float]) -> None:
        used: dict[int, float] = {}
        fastest: dict[int, float] = {}
        of_route: dict[int, float] = {}
        for route, rate in zip(routes, rates, strict=True):
            of_route[route.index] = of_route.get(route.index, 0.0) + rate
            for link, weight in zip(route.links, route.weights, strict=True):
                if link not in used:
                    used[link], fastest[link] = weight * rate, rate
                else:
                    used[link] += weight * rate
                    if rate > fastest[link]:  # noqa: PLR1730  (max is a call, and this is the hot loop)
                        fastest[link] = rate
        self.used, self.fastest, self.of_route = used, fastest, of_route


def _share_of_kin(sharers: Sharers, capacity: Sequence[float], loads: _Loads, route: Route, rate: float) -> float:
    """Of what others put on the bottlenecks of a flow, the part that is kin's; the mean over the bottlenecks."""
    share = places = 0.0
    of_route = loads.of_route
    for link in route.links:
        load = loads.used[link]
        if loads.fastest[link] > rate * (1 + _TIE) or load < capacity[link] * (1 - _TIE):
            continue
        for place in sharers.places(route, link):
            own = place.own * rate
            others = load - own
            if others > _TIE * load:
                kin = sum([weight * of_route[number] for number, weight in place.kin if number in of_route]) - own
                share += kin / others
                places += 1
    return min(max(share / places, 0.0), 1.0) if places else 0.0


def rate_of_one(sharers: Sharers, capacity: Sequence[float], route: Route) -> float:
    """Rate of one flow on a route if it were alone on the network as it is now, bytes/s."""
    return min([capacity[link] / max([p.own for p in sharers.places(route, link)]) for link in route.links])
