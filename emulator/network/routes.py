"""Routes, fixed sets of links with weights, and the flows that are under way on them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from emulator.network.maxmin import Floats, Ints

if TYPE_CHECKING:
    from emulator.network.sharing import Charge


class Route:
    """Where the bytes of a flow (or of a coupled group of flows) go: a fixed set of links with weights.

    Made by :meth:`Network.route`. ``weights[i]`` bytes cross ``links[i]`` for each byte of the flow. ``rate_alone``
    (bytes/s) is the rate on an idle network; ``inf`` without links. If ``private``, nothing else ever uses these links
    and a plain timeout of ``amount / rate_alone`` is exact (:func:`mark_private`); who times it so adds the bytes to
    ``carried``, the bytes of completed flows.

    ``flows_on`` has the flows now on those links where flows of this route can meet any: its first link, where they
    meet each other, and every link that another route uses too. The other links need no watching.

    A route can stand for many alike that share links. ``rate_full`` is the rate of one of them on the idle network,
    ``rate_now`` the same with the capacities of the moment; ``charge`` is what it loses per second while it has the
    network to itself (:mod:`.sharing`; None: nothing).
    """

    __slots__ = (
        "carried",
        "charge",
        "flows_on",
        "index",
        "link_array",
        "links",
        "private",
        "rate_alone",
        "rate_full",
        "rate_now",
        "weight_array",
        "weights",
    )

    def __init__(self, index: int, links: tuple[int, ...], weights: tuple[float, ...]) -> None:
        self.index = index
        self.links = links
        self.weights = weights
        self.link_array: Ints = np.array(links, dtype=np.int64)
        self.weight_array: Floats = np.array(weights, dtype=np.float64)
        self.flows_on: dict[int, Active] = {}
        self.rate_alone = self.rate_full = self.rate_now = inf
        self.charge: Charge | None = None
        self.private = False
        self.carried = 0.0

    def meet(self, link: int, flows: Active) -> None:
        """Watch a link; ``flows`` are those now on it, to which this route's own are added."""
        if link not in self.flows_on:
            if self.flows_on:
                flows.update({flow: None for flow in self.flows_on[self.links[0]] if flow.route is self})
            self.flows_on[link] = flows


class Flow:
    """One transfer under way: ``remaining`` bytes as of ``since``. ``version`` marks its valid finish in the heap.

    Since ``charged_since`` it has lost ``charge`` per second, to be put down on ``account``.
    """

    __slots__ = (
        "account", "amount", "charge", "charged_since", "done", "rate", "remaining", "route", "seen", "since",
        "version",
    )  # fmt: skip

    def __init__(self, route: Route, amount: float, done: Callable[[], None], now: float, account: int) -> None:
        self.route = route
        self.amount = amount
        self.remaining = amount
        self.rate = 0.0
        self.since = now
        self.version = -1
        self.seen = 0
        self.done = done
        self.account = account
        self.charge: Charge | None = None
        self.charged_since = now


Active = dict[Flow, None]  # flows on one link, in order of arrival: an ordered set, so that runs repeat exactly


def mark_private(uses: Iterable[tuple[Route, Hashable]], changing: Iterable[int] = ()) -> None:
    """Set ``private`` on every route whose links only one owner uses and whose capacity never changes.

    ``uses`` are all (route, owner) pairs there will ever be. An owner must run its routes one at a time: a group's
    collectives on one stream do. ``changing`` are links with planned capacity changes.
    """
    pairs = list(uses)
    owner_of: dict[int, Hashable] = {}
    shared: set[int] = set(changing)
    for route, owner in pairs:
        for link in route.links:
            if owner_of.setdefault(link, owner) != owner:
                shared.add(link)
    for route, _ in pairs:
        route.private = shared.isdisjoint(route.links)
