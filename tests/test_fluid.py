"""Flows in time: against SimGrid, against hand sums, and conservation for any traffic."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network.clock import Clock
from emulator.network.fluid import Network, mark_private

# simgrid.json: completion times by SimGrid 3.32 with clean settings (named in the file); its own precision is 1e-9.
SCENARIOS = json.loads((Path(__file__).parent / "data" / "simgrid.json").read_text())["scenarios"]


def at(clock, time, action, *args):
    clock.call_at(time, lambda _: action(*args))


def note(ends, name, clock):
    """A callback that writes down when it was called."""
    return lambda: ends.setdefault(name, clock.now)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"] for s in SCENARIOS])
def test_simgrid(scenario):
    index = {link["id"]: i for i, link in enumerate(scenario["links"])}
    clock = Clock()
    network = Network(clock, [link["bandwidth_Bps"] for link in scenario["links"]])
    ends = {}
    for flow in scenario["flows"]:
        links = [index[name] for name in flow["route"]]
        latency = sum(scenario["links"][link]["latency_s"] for link in links)
        route = network.route(links, [1.0] * len(links))
        done = note(ends, flow["id"], clock)
        at(clock, flow["start_s"] + latency, network.start, route, flow["bytes"], done)
    for event in scenario["link_events"]:
        at(clock, event["t_s"], network.set_capacity, index[event["link"]], event["bandwidth_Bps"])
    clock.run()
    expected = scenario["completion_s"]
    assert ends.keys() == expected.keys()
    for name, end in ends.items():
        assert end == pytest.approx(expected[name], rel=1e-8)
    carried = np.zeros(len(index))
    for flow in scenario["flows"]:
        for name in flow["route"]:
            carried[index[name]] += flow["bytes"]
    np.testing.assert_allclose(network.link_bytes(), carried, rtol=1e-12)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log():
    return []


def test_alone_it_takes_bytes_over_bandwidth(clock, log):
    network = Network(clock, [10.0, 5.0])
    network.start(network.route([0, 1], [1.0, 0.25]), 100.0, lambda: log.append(clock.now))
    clock.run()
    assert log == [10.0]
    assert network.link_bytes().tolist() == [100.0, 25.0]


def test_survivor_speeds_up(clock, log):
    network = Network(clock, [10.0])
    route = network.route([0], [1.0])
    network.start(route, 10.0, lambda: log.append(clock.now))
    network.start(route, 30.0, lambda: log.append(clock.now))
    clock.run()
    assert log == [2.0, 4.0]


def test_heavy_group_counts_as_many_flows(clock, log):
    network = Network(clock, [40.0])
    network.start(network.route([0], [3.0]), 100.0, lambda: log.append(("group", clock.now)))
    network.start(network.route([0], [1.0]), 100.0, lambda: log.append(("single", clock.now)))
    clock.run()
    assert log == [("group", 10.0), ("single", 10.0)]


def test_capacity_change_reaches_flows_under_way(clock, log):
    network = Network(clock, [10.0])
    network.start(network.route([0], [1.0]), 100.0, lambda: log.append(clock.now))
    at(clock, 5.0, lambda: network.set_capacity(0, 2.0))
    at(clock, 10.0, lambda: network.set_capacity(0, 40.0))
    clock.run()
    assert log == [11.0]
    assert clock.now == 11.0  # finishes foreseen before the changes leave no trace
    assert network.link_capacity_bytes().tolist() == [100.0]


def test_bytes_are_counted_under_way(clock):
    network = Network(clock, [10.0, 10.0])
    network.start(network.route([0, 1], [1.0, 0.5]), 100.0, lambda: None)
    network.start(network.route([1], [1.0]), 1000.0, lambda: None)
    clock.run(until=3.0)
    # On link 1: 0.5 x + x = 10, so both rates are 10 / 1.5.
    np.testing.assert_allclose(network.link_bytes(), [20.0, 30.0])


def test_nothing_to_move_is_done_now(clock, log):
    network = Network(clock, [10.0])
    at(clock, 7.0, lambda: network.start(network.route([0], [1.0]), 0.0, lambda: log.append(clock.now)))
    at(clock, 8.0, lambda: network.start(network.route([], []), 5.0, lambda: log.append(clock.now)))
    clock.run()
    assert log == [7.0, 8.0]


def test_equal_finishes_are_one_instant(clock, log):
    """Seven shares of one link end together, whatever the rounding of 0.1 s arrivals; one timer serves them all."""
    network = Network(clock, [0.7])
    route = network.route([0], [1.0])
    for _ in range(7):
        at(clock, 0.1, lambda: network.start(route, 0.3, lambda: log.append(clock.now)))
    clock.run()
    assert len(set(log)) == 1
    assert log[0] == pytest.approx(0.1 + 3.0)
    assert network.counters.settlings == 1


def test_flows_apart_do_not_disturb_each_other(clock):
    network = Network(clock, [1.0] * 10)
    for link in range(10):
        network.start(network.route([link], [1.0]), 1.0 + link, lambda: None)
    clock.run()
    assert network.counters.solves == 0


def test_memo_repeats_known_sets(clock):
    network = Network(clock, [1.0, 2.0])
    a, b = network.route([0, 1], [1.0, 1.0]), network.route([1], [1.0])
    for time in range(0, 100, 10):
        at(clock, float(time), lambda: (network.start(a, 1.0, int), network.start(b, 1.0, int)))
    clock.run()
    assert network.counters.solves == 1
    assert network.counters.memo_hits == 9


def test_routes_are_interned(clock):
    network = Network(clock, [1.0, 2.0])
    assert network.route([0, 1], [1.0, 0.5]) is network.route(np.array([0, 1]), np.array([1.0, 0.5]))
    assert network.route([0, 1], [1.0, 0.5]).rate_alone == 1.0


def test_private_routes(clock):
    network = Network(clock, [1.0] * 5)
    a, b, c = network.route([0], [1.0]), network.route([1, 2], [1.0, 1.0]), network.route([2], [1.0])
    d, e = network.route([3], [1.0]), network.route([4], [1.0])
    mark_private([(a, "tp"), (a, "tp"), (b, "tp"), (c, "dp"), (d, "dp"), (e, "dp")], changing=[4])
    assert [r.private for r in (a, b, c, d, e)] == [True, False, False, True, False]


@pytest.mark.parametrize("capacity", [0.0, -1.0, np.nan])
def test_refuses_capacity(clock, capacity):
    with pytest.raises(ValueError, match="capacity of link 0"):
        Network(clock, [capacity])
    with pytest.raises(ValueError, match="capacity of link 0"):
        Network(clock, [1.0]).set_capacity(0, capacity)


def test_refuses_route_and_amount(clock):
    network = Network(clock, [1.0])
    for links, weights in [([1], [1.0]), ([0], [0.0]), ([0, 0], [1.0, 1.0]), ([0], [1.0, 2.0])]:
        with pytest.raises(ValueError):
            network.route(links, weights)
    for amount in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError):
            network.start(network.route([0], [1.0]), amount, lambda: None)


flows = st.tuples(
    st.floats(0, 5),
    st.sets(st.integers(0, 3), min_size=1).map(sorted),
    st.floats(0.1, 50),
    st.sampled_from([0.25, 1.0, 3.0]),
)
changes = st.tuples(st.floats(0, 5), st.integers(0, 3), st.sampled_from([0.5, 1.0, 4.0]))


@given(st.lists(flows, min_size=1, max_size=12), st.lists(changes, max_size=3))
@settings(max_examples=80, deadline=None)
def test_bytes_are_conserved_and_links_never_overfull(traffic, events):
    clock, ends = Clock(), {}
    network = Network(clock, [1.0, 2.0, 3.0, 4.0])
    expected = np.zeros(4)
    for i, (time, links, amount, weight) in enumerate(traffic):
        expected[links] += amount * weight
        route = network.route(links, [weight] * len(links))
        at(clock, time, network.start, route, amount, note(ends, i, clock))
    for time, link, capacity in events:
        at(clock, time, network.set_capacity, link, capacity)
    samples = []
    for time in np.linspace(0.0, 20.0, 9):
        at(clock, time, lambda: samples.append((network.link_bytes(), network.link_capacity_bytes())))
    clock.run()
    assert len(ends) == len(traffic)
    np.testing.assert_allclose(network.link_bytes(), expected, rtol=1e-9)
    for (bytes0, room0), (bytes1, room1) in pairwise(samples):
        assert np.all(bytes1 - bytes0 <= (room1 - room0) * (1 + 1e-9) + 1e-9)


def naive(capacity, traffic):
    """Finish times by stepping from instant to instant, all rates anew each time by an independent filling."""
    left = {i: amount for i, (_, _, amount) in enumerate(traffic)}
    now, ends = 0.0, {}
    while left:
        active = [i for i in left if traffic[i][0] <= now]
        rates, room, rising = {}, list(capacity), set(active)
        while rising:
            level = {
                link: room[link] / load
                for link in range(len(capacity))
                if (load := sum(link in traffic[i][1] for i in rising))
            }
            link = min(level, key=level.get)
            for i in [i for i in rising if link in traffic[i][1]]:
                rates[i] = level[link]
                rising.discard(i)
                for other in traffic[i][1]:
                    room[other] -= level[link]
        instants = [now + left[i] / rates[i] for i in active] + [t for t, _, _ in traffic if t > now]
        then = min(instants)
        for i in active:
            left[i] -= rates[i] * (then - now)
            if left[i] <= 1e-9:
                del left[i]
                ends[i] = then
        now = then
    return ends


plain = st.tuples(st.integers(0, 6), st.sets(st.integers(0, 4), min_size=1, max_size=3).map(sorted), st.integers(1, 30))


@given(st.lists(plain, min_size=1, max_size=15))
@settings(max_examples=80, deadline=None)
def test_equals_solving_everything_at_every_instant(traffic):
    """Component solves, the memo and the alone path change nothing."""
    capacity = [1.0, 2.0, 3.0, 5.0, 1.0]
    clock, ends = Clock(), {}
    network = Network(clock, capacity)
    for i, (time, links, amount) in enumerate(traffic):
        # Routes made on the way meet those that have flows already.
        start = lambda ls=links, a=amount, i=i: network.start(  # noqa: E731
            network.route(ls, [1.0] * len(ls)), float(a), note(ends, i, clock)
        )
        at(clock, float(time), start)
    clock.run()
    for i, end in naive(capacity, traffic).items():
        assert ends[i] == pytest.approx(end, rel=1e-6)  # the naive one drops a flow at 1e-9 bytes left


def test_clock_sets_absolute_times(clock, log):
    at(clock, 0.1, lambda: at(clock, 0.3, lambda: log.append(clock.now)))
    clock.run()
    assert log == [0.3]  # 0.1 + (0.3 - 0.1) would not be
    assert clock.events == 2
    with pytest.raises(ValueError, match="cannot schedule"):
        clock.call_at(0.2, lambda _: None)


def test_clock_is_a_simpy_environment(clock, log):
    def process():
        while True:
            yield clock.timeout(1.0)
            log.append(clock.now)

    clock.process(process())
    clock.run(until=3.5)
    assert clock.now == 3.5
    assert log == [1.0, 2.0, 3.0]

    def fails():
        yield clock.timeout(1.0)
        raise RuntimeError("in a process")

    clock = Clock()
    clock.process(fails())
    with pytest.raises(RuntimeError, match="in a process"):
        clock.run()
