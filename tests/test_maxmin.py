"""Max-min rates: exact cases, an exact-fraction reference, and what must hold for any set of flows."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network import maxmin

# maxmin.json: rates confirmed by exact rationals, by linear programs and by five solvers when the file was made.
GOLDEN = json.loads((Path(__file__).parent / "data" / "maxmin.json").read_text())["cases"]


def arrays(flows: list[dict[int, float]]):
    ptr = np.cumsum([0, *map(len, flows)])
    link = np.array([link for flow in flows for link in flow], dtype=np.int64)
    weight = np.array([weight for flow in flows for weight in flow.values()], dtype=np.float64)
    return ptr, link, weight


def both(capacity: list[float], flows: list[dict[int, float]]) -> list[np.ndarray]:
    """Rates by the small path and by the rounds."""
    ptr, link, weight = arrays(flows)
    small = maxmin.solve_small(capacity, [list(flow) for flow in flows], [list(flow.values()) for flow in flows])
    return [np.array(small), maxmin.solve_rounds(np.array(capacity, dtype=float), ptr, link, weight)]


def exact(capacity: list[float], flows: list[dict[int, float]]) -> list[Fraction]:
    """Textbook progressive filling in fractions: one global minimum per round."""
    left = {link: Fraction(c) for link, c in enumerate(capacity)}
    rates: dict[int, Fraction] = {}
    while len(rates) < len(flows):
        rising = [f for f in range(len(flows)) if f not in rates]
        load = {link: sum(Fraction(flows[f].get(link, 0)) for f in rising) for link in left}
        level = min(left[link] / load[link] for link in left if load[link])
        full = {link for link in left if load[link] and left[link] / load[link] == level}
        for f in rising:
            if full & flows[f].keys():
                rates[f] = level
        for link in left:
            left[link] -= sum(Fraction(flows[f].get(link, 0)) * level for f in rising if f in rates)
    return [rates[f] for f in range(len(flows))]


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_golden(case):
    index = {name: i for i, name in enumerate(case["capacities"])}
    capacity = [float(c) for c in case["capacities"].values()]
    flows = [{index[name]: w for name, w in flow["weights"].items()} for flow in case["flows"]]
    expected = [float(Fraction(rate)) for rate in case["rates_exact"]]
    for rates in [*both(capacity, flows), maxmin.solve(np.array(capacity), *arrays(flows))]:
        np.testing.assert_allclose(rates, expected, rtol=1e-9)


usual = st.sampled_from([0.125, 0.25, 1.0, 1.0, 1.0, 3.0, 0.1])
extreme = st.one_of(st.sampled_from([1e-12, 1e-9, 1e9, 1e12]), st.floats(1e-3, 1e3))


@st.composite
def networks(draw, weights, max_flows):
    links = draw(st.integers(1, 8))
    # Few different capacities, so that ties of levels are common.
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 10.0, 1e9]), min_size=links, max_size=links))
    flow = st.dictionaries(st.integers(0, links - 1), weights, min_size=1, max_size=links)
    return capacity, draw(st.lists(flow, min_size=1, max_size=max_flows))


@given(networks(usual, max_flows=12))
@settings(max_examples=150, deadline=None)
def test_equals_exact_fractions(network):
    capacity, flows = network
    expected = [float(rate) for rate in exact(capacity, flows)]
    for rates in both(capacity, flows):
        # Rounding of a residual is relative to the capacity, at most 1e10 x the smallest rate here.
        np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-9 * min(capacity))


@given(networks(extreme, max_flows=40))
@settings(max_examples=150, deadline=None)
def test_fits_and_is_bottlenecked(network):
    """No link above capacity, and every flow has a full link on which nobody is faster: that is max-min fairness."""
    capacity, flows = network
    for rates in both(capacity, flows):
        pairs = list(zip(flows, rates.tolist(), strict=True))
        load = [sum(flow.get(link, 0) * rate for flow, rate in pairs) for link in range(len(capacity))]
        assert all(rates > 0)
        assert all(used <= c * (1 + 1e-9) for used, c in zip(load, capacity, strict=True))
        for flow, rate in pairs:
            full = [link for link in flow if load[link] >= capacity[link] * (1 - 1e-9)]
            fastest = [max(r for f, r in pairs if link in f) for link in full]
            assert any(rate >= other * (1 - 1e-9) for other in fastest)


def test_both_paths_agree_on_many_flows():
    rng = np.random.default_rng(7)
    capacity = rng.choice([10e9, 50e9, 400e9], 300)
    flows = [dict.fromkeys(rng.choice(300, 6, replace=False).tolist(), 1.0) for _ in range(1000)]
    small, rounds = both(capacity.tolist(), flows)
    np.testing.assert_allclose(small, rounds, rtol=1e-9)


def test_far_more_links_than_used():
    capacity = np.full(100_000, 8.0)
    ptr, link, weight = arrays([{70_000: 1.0}] * 40)
    np.testing.assert_allclose(maxmin.solve(capacity, ptr, link, weight), 0.2)


def test_flow_without_links_is_not_limited():
    for rates in both([10.0], [{}, {0: 1.0}, {}]):
        assert rates.tolist() == [np.inf, 10.0, np.inf]


@pytest.mark.parametrize("capacity", [0.0, -1.0, np.nan, np.inf])
def test_refuses_capacity(capacity):
    with pytest.raises(ValueError, match="capacity of link 1"):
        maxmin.solve(np.array([1.0, capacity]), *arrays([{0: 1.0, 1: 1.0}]))


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan])
def test_refuses_weight(weight):
    with pytest.raises(ValueError, match="weights"):
        maxmin.solve(np.array([1.0]), *arrays([{0: weight}]))


def test_unused_link_may_be_anything():
    assert maxmin.solve(np.array([4.0, 0.0]), *arrays([{0: 2.0}])).tolist() == [2.0]
