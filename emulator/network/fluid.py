"""The network as fluid: flows that share links max-min fairly, event by event.

A :class:`Network` is like a system of pipes: whenever something starts, ends, or a pipe changes its width, the rates of
everything connected to it settle anew. Between such instants rates are constant, so finish times are known exactly.

What keeps it fast: all changes of one instant are settled together, once; only the connected component of flows that
changed is solved; a flow whose rate stays is not touched; SimPy holds one timer, for the earliest finish. A flow that
starts on links nobody uses needs no solve at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np
from simpy.events import Event

from emulator.network import maxmin
from emulator.network.clock import LAST, Clock
from emulator.network.maxmin import Floats
from emulator.network.routes import Active, Flow, Route, mark_private
from emulator.network.sharing import Charge, Sharers, charges, rate_of_one

__all__ = ["Counters", "Network", "Route", "mark_private"]

_SAME_TIME = 1e-12  # finishes this close, relatively, are one instant: they would be equal without rounding
_MEMO_FLOWS = 64  # larger components hardly ever recur
_MEMO_ENTRIES = 4096
Solved = tuple[list[float], list[Charge | None]]  # rates of the flows of a component, and what they lose


@dataclass
class Counters:
    """How much work the network did: flows started, settling instants, components solved (memo hits apart), timers."""

    starts: int = 0
    settlings: int = 0
    solves: int = 0
    solved_flows: int = 0
    memo_hits: int = 0
    timers: int = 0


class Network:
    """Links with capacities, and the flows on them.

    ``capacity`` f64[L] bytes/s per directed link. Raises ValueError if one is not positive and finite. If it is to keep
    accounts, ``lost[account]`` are the seconds that flows of an account have lost to kin, to strangers and to slower
    links (:mod:`.sharing`), once they have ended; what lost nothing has no entry.
    """

    def __init__(self, clock: Clock, capacity: Sequence[float] | Floats) -> None:
        self.clock = clock
        self.capacity: Floats = np.array(capacity, dtype=np.float64)
        wrong = np.flatnonzero(~((self.capacity > 0) & np.isfinite(self.capacity)))
        if len(wrong):
            raise ValueError(f"capacity of link {wrong[0]} must be positive and finite, not {self.capacity[wrong[0]]}")
        self._capacity_list: list[float] = self.capacity.tolist()  # indexing a list is what the small solver needs
        self.counters = Counters()
        self.routes: list[Route] = []
        self.active = 0
        self.sharers: Sharers | None = None
        self.lost: dict[int, list[float]] = {}
        self._interned: dict[tuple[tuple[int, ...], tuple[float, ...], int, float | None], Route] = {}
        self._first_on: dict[int, Route] = {}  # the first route that was made with this link
        self._flows_on: dict[int, Active] = {}  # of links where flows can meet
        self._link_seen: dict[int, int] = {}
        self._epoch = 0
        self._heap: list[tuple[float, int, Flow]] = []
        self._version = 0
        self._changed: list[Route] = []
        self._settling = False
        self._timer: Event | None = None
        self._timer_time = inf
        self._memo: dict[tuple[int, ...], Solved] = {}
        self._changes: dict[int, list[tuple[float, float]]] = {}  # per link: (time, capacity until then)

    # -- routes and flows

    def route(
        self, links: Iterable[int], weights: Iterable[float], owner: int = 0, rate_full: float | None = None
    ) -> Route:
        """The route with these links (each at most once) and weights; equal ones of an owner are the same object.

        ``rate_full``: rate of one of those it stands for on the idle network, bytes/s (None: it stands for itself).
        Raises ValueError on a weight that is not positive and finite, or an unknown or repeated link.
        """
        key = (tuple(int(link) for link in links), tuple(float(weight) for weight in weights), owner, rate_full)
        known = self._interned.get(key)
        if known is not None:
            return known
        if len(key[0]) != len(key[1]) or len(set(key[0])) != len(key[0]):
            raise ValueError("a route needs one weight per link and each link once")
        if not all(0 <= link < len(self.capacity) for link in key[0]):
            raise ValueError(f"a route names a link outside 0..{len(self.capacity) - 1}")
        if not all(0 < weight < inf for weight in key[1]):
            raise ValueError("weights of a route must be positive and finite")
        route = Route(len(self.routes), key[0], key[1])
        route.rate_alone = self._rate_alone(route)
        route.rate_full = route.rate_now = route.rate_alone if rate_full is None else rate_full
        for link in key[0]:
            first = self._first_on.setdefault(link, route)
            if first is not route or not route.flows_on:
                flows = self._flows_on.setdefault(link, {})
                first.meet(link, flows)
                route.meet(link, flows)
        self.routes.append(route)
        self._interned[key] = route
        return route

    def start(self, route: Route, amount: float, done: Callable[[], None], account: int = 0) -> None:
        """Begin to move ``amount`` bytes now; ``done()`` is called at the instant the last byte is over.

        What it loses to others goes on ``account``. Latency is the caller's business. Nothing to move, or a route
        without links, is done at this same instant.
        Raises ValueError if ``amount`` is negative or not finite.
        """
        clock = self.clock
        now = clock._now
        self.counters.starts += 1
        if not (0 < amount < inf and route.links):
            if not 0 <= amount < inf:
                raise ValueError(f"a flow cannot carry {amount} bytes")
            clock.call_at(now, lambda _: done())
            return
        flow = Flow(route, amount, done, now, account)
        self.active += 1
        alone = True
        for flows in route.flows_on.values():
            if flows:
                alone = False
            flows[flow] = None
        if alone:  # its rate is known; who joins its links at this same instant will find it there
            rate = flow.rate = route.rate_alone
            flow.charge = route.charge
            self._version = flow.version = self._version + 1
            time = now + amount / rate
            heappush(self._heap, (time, flow.version, flow))
            if time < self._timer_time:
                self._arm(time)
        else:
            self._changed.append(route)
            if not self._settling:
                self._settle_later()

    def set_capacity(self, link: int, capacity: float) -> None:
        """Change the capacity of a link now (bytes/s), for flows under way too.

        Raises ValueError if it is not positive and finite: a link that fails has to be routed around.
        """
        if not 0 < capacity < inf:
            raise ValueError(f"capacity of link {link} must be positive and finite, not {capacity}")
        self._changes.setdefault(link, []).append((self.clock._now, self._capacity_list[link]))
        self.capacity[link] = self._capacity_list[link] = float(capacity)
        self._memo.clear()
        touched = [route for route in self.routes if link in route.links]
        for route in touched:
            route.rate_alone = self._rate_alone(route)
            if self.sharers is not None:
                route.rate_now = rate_of_one(self.sharers, self.capacity, route)
                route.charge = self._losses([route], [route.rate_alone])[0]
        if touched:  # all of them meet on this link: one leads to the component
            self._changed.append(touched[0])
            self._settle_later()

    # -- what was carried

    def link_bytes(self) -> Floats:
        """Bytes carried so far per link, f64[L], flows under way included up to now."""
        now = self.clock._now
        total = np.zeros(len(self.capacity))
        for route in self.routes:
            if route.carried:
                total[route.link_array] += route.carried * route.weight_array
        for flow in {flow: None for flows in self._flows_on.values() for flow in flows}:
            moved = flow.amount - flow.remaining + flow.rate * (now - flow.since)
            total[flow.route.link_array] += moved * flow.route.weight_array
        return total

    def link_capacity_bytes(self) -> Floats:
        """Bytes each link could have carried from time 0 to now, f64[L]: the base of its utilisation."""
        total: Floats = self.capacity * self.clock._now
        for link, changes in self._changes.items():
            since = area = 0.0
            for time, capacity in changes:
                area += capacity * (time - since)
                since = time
            total[link] = area + self._capacity_list[link] * (self.clock._now - since)
        return total

    # -- what sharing costs

    def keep_accounts(self, sharers: Sharers) -> None:
        """From now on put down what flows lose to each other. All routes have to be there."""
        self.sharers = sharers
        for route in self.routes:
            route.charge = self._losses([route], [route.rate_alone])[0]

    def put_down(self, account: int, charge: Charge, seconds: float) -> None:
        """Put what was lost in ``seconds`` on an account."""
        lost = self.lost.setdefault(account, [0.0, 0.0, 0.0])
        for i, part in enumerate(charge):
            lost[i] += part * seconds

    def _losses(self, routes: list[Route], rates: list[float]) -> list[Charge | None]:
        if self.sharers is None:
            return [None] * len(routes)
        return charges(self.sharers, self.capacity, routes, rates)

    # -- settling

    def _rate_alone(self, route: Route) -> float:
        capacity = self._capacity_list
        return min(
            (capacity[link] / weight for link, weight in zip(route.links, route.weights, strict=True)), default=inf
        )

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self.clock.call_at(self.clock._now, self._settle, LAST)

    def _settle(self, _: Event) -> None:
        """Find the new rates of all components touched at this instant."""
        self._settling = False
        self.counters.settlings += 1
        self._epoch += 1
        known: list[tuple[list[Flow], Solved]] = []
        unknown: list[tuple[list[Flow], tuple[int, ...]]] = []
        for changed in self._changed:
            component = self._component(changed)
            if not component:
                continue
            if len(component) == 1:
                route = component[0].route
                known.append((component, ([route.rate_alone], [route.charge])))
                continue
            component.sort(key=_route_index)
            key = tuple([flow.route.index for flow in component]) if len(component) <= _MEMO_FLOWS else ()
            solved = self._memo.get(key)
            if solved is None:
                unknown.append((component, key))
            else:
                self.counters.memo_hits += 1
                known.append((component, solved))
        self._changed.clear()
        if unknown:
            known += self._solve(unknown)
        for component, (rates, losses) in known:
            self._apply(component, rates, losses)
        self._arm_next()

    def _component(self, route: Route) -> list[Flow]:
        """Flows connected with the links of ``route`` by shared links, none that this settling has already seen."""
        epoch, seen = self._epoch, self._link_seen
        found: list[Flow] = []
        stack = [route]
        while stack:
            for link, flows in stack.pop().flows_on.items():
                if seen.get(link) != epoch:
                    seen[link] = epoch
                    for flow in flows:
                        if flow.seen != epoch:
                            flow.seen = epoch
                            found.append(flow)
                            stack.append(flow.route)
        return found

    def _solve(self, unknown: list[tuple[list[Flow], tuple[int, ...]]]) -> list[tuple[list[Flow], Solved]]:
        """Rates of several components by one call: they do not touch, so the solver settles them side by side."""
        routes = [flow.route for component, _ in unknown for flow in component]
        self.counters.solves += 1
        self.counters.solved_flows += len(routes)
        count = [len(route.links) for route in routes]
        if len(routes) <= maxmin.SMALL_FLOWS and sum(count) <= maxmin.SMALL_ENTRIES:
            links, weights = [route.links for route in routes], [route.weights for route in routes]
            rates = maxmin.solve_small(self._capacity_list, links, weights)
        else:
            ptr = np.zeros(len(routes) + 1, dtype=np.int64)
            np.cumsum(count, out=ptr[1:])
            link = np.concatenate([route.link_array for route in routes])
            weight = np.concatenate([route.weight_array for route in routes])
            rates = maxmin.solve_rounds(self.capacity, ptr, link, weight).tolist()
        losses = self._losses(routes, rates)
        solved = []
        at = 0
        for component, key in unknown:
            end = at + len(component)
            part = rates[at:end], losses[at:end]
            at = end
            solved.append((component, part))
            if key:
                if len(self._memo) >= _MEMO_ENTRIES:
                    self._memo.clear()
                self._memo[key] = part
        return solved

    def _apply(self, flows: list[Flow], rates: list[float], losses: list[Charge | None]) -> None:
        now, heap = self.clock._now, self._heap
        for flow, rate, loss in zip(flows, rates, losses, strict=True):
            if loss is not flow.charge:
                if flow.charge is not None:
                    self.put_down(flow.account, flow.charge, now - flow.charged_since)
                flow.charge = loss
                flow.charged_since = now
            if rate == flow.rate:
                continue
            if not rate > 0:
                raise ValueError(f"a flow over links {flow.route.links[:4]} got rate {rate}: it would never end")
            flow.remaining -= flow.rate * (now - flow.since)
            flow.since = now
            flow.rate = rate
            self._version = flow.version = self._version + 1
            heappush(heap, (now + max(flow.remaining, 0.0) / rate, flow.version, flow))

    # -- finishing

    def _arm(self, time: float) -> None:
        self.counters.timers += 1
        if self._timer is not None:
            self.clock.cancel(self._timer)
        self._timer_time = time
        self._timer = self.clock.call_at(time, self._finish)

    def _arm_next(self) -> None:
        """Set the timer for the earliest valid finish."""
        heap = self._heap
        if len(heap) > 4 * self.active + 64:
            heap[:] = [entry for entry in heap if entry[1] == entry[2].version]
            heapify(heap)
        while heap and heap[0][1] != heap[0][2].version:
            heappop(heap)
        if heap and heap[0][0] != self._timer_time:
            self._arm(heap[0][0])

    def _finish(self, _: Event) -> None:
        self._timer, self._timer_time = None, inf
        heap = self._heap
        limit = self.clock._now * (1 + _SAME_TIME)
        finished: list[Flow] = []
        while heap and heap[0][0] <= limit:
            _, version, flow = heappop(heap)
            if flow.version == version:
                flow.version = -1
                finished.append(flow)
        self.active -= len(finished)
        for flow in finished:
            flow.route.carried += flow.amount
            if flow.charge is not None:
                self.put_down(flow.account, flow.charge, self.clock._now - flow.charged_since)
            for flows in flow.route.flows_on.values():
                del flows[flow]
        for flow in finished:
            if any(flow.route.flows_on.values()):  # others are left on its links
                self._changed.append(flow.route)
        if self._changed:
            self._settle_later()
        else:
            self._arm_next()
        for flow in finished:
            flow.done()


def _route_index(flow: Flow) -> int:
    return flow.route.index
