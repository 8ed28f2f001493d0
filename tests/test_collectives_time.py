"""How long collectives take: closed forms on an idle network, and phases against steps under contention."""

from __future__ import annotations

import numpy as np
import pytest
from fabrics import Star, TwoLevelTree
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network import bind, collectives
from emulator.network.clock import Clock
from emulator.network.fluid import Network
from emulator.network.steps_player import play
from emulator.topology.load import load

S = 256e6
B = 50e9
A = 2e-6


def place(fabric, members, collective, algorithm, **options):
    """Bound phases of one group; its domains are looked up in the fabric."""
    members = np.array([members])
    domains = bind.domain_pattern(fabric, members)[0]
    phases = collectives.phases(collective, algorithm, members.shape[1], domains=domains, **options)
    return bind.bind(fabric, members, phases)


def seconds(fabric, members, collective, algorithm, size=S, **options):
    return bind.predict(place(fabric, members, collective, algorithm, **options), size)[0]


# -- closed forms (cost formulas of Thakur et al. 2005 and the scaling book, with reduction arithmetic free)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64])
def test_closed_forms_on_a_star(n):
    star, everyone = Star(n, B, A), list(range(n))
    once = (n - 1) * (A + S / (n * B))
    exchange = (A if n > 1 else 0) + (n - 1) / n * S / B
    depth = (n - 1).bit_length()
    expected = {
        ("all_reduce", "ring"): 2 * once,
        ("all_gather", "ring"): once,
        ("reduce_scatter", "ring"): once,
        ("all_reduce", "direct"): 2 * exchange,
        ("all_gather", "direct"): exchange,
        ("reduce_scatter", "direct"): exchange,
        ("all_to_all", "direct"): exchange,
        ("all_to_all", "pairwise"): once,
        ("gather", "direct"): exchange,
        ("scatter", "direct"): exchange,
        ("broadcast", "binomial"): depth * (A + S / B),
        ("reduce", "binomial"): depth * (A + S / B),
        ("broadcast", "ring"): (n - 1) * A + (S / B if n > 1 else 0),
        ("reduce", "ring"): (n - 1) * A + (S / B if n > 1 else 0),
        ("barrier", "dissemination"): depth * A,
    }
    for (collective, algorithm), time in expected.items():
        assert seconds(star, everyone, collective, algorithm) == pytest.approx(time, rel=1e-9), (collective, algorithm)


def test_send_is_latency_and_transfer():
    assert seconds(Star(2, B, A), [1, 0], "send", "direct") == pytest.approx(A + S / B, rel=1e-12)


def test_reference_numbers():
    """p = 8, B = 450e9, S = 2^30: figures worked out by hand elsewhere, to their four digits."""
    star, everyone = Star(8, 450e9), list(range(8))
    for collective, algorithm, milliseconds in [
        ("all_reduce", "ring", 4.1757), ("all_gather", "ring", 2.0878), ("all_to_all", "direct", 2.0878),
    ]:  # fmt: skip
        assert seconds(star, everyone, collective, algorithm, 2.0**30) * 1e3 == pytest.approx(milliseconds, abs=5e-5)


@pytest.mark.parametrize(("g", "k"), [(2, 2), (4, 2), (8, 4)])
def test_closed_forms_hierarchical(g, k):
    b1, b2, a1, a2 = 900e9, 50e9, 1e-6, 5e-6
    tree = TwoLevelTree(k, g, per_leaf=k, nvlink=b1, card=b2, latency=(a1, a2, a2))
    inside, across = (g - 1) * (a1 + S / g / b1), (k - 1) * (a2 + S / g / k / b2)
    for members in (np.arange(g * k), np.arange(g * k).reshape(k, g).T.ravel()):
        assert seconds(tree, members, "all_reduce", "hierarchical") == pytest.approx(2 * inside + 2 * across, rel=1e-9)
        for collective in ("all_gather", "reduce_scatter"):
            assert seconds(tree, members, collective, "hierarchical") == pytest.approx(inside + across, rel=1e-9)


def test_hierarchical_reference_numbers():
    """p = 32, g = 8, S = 2^32: inside 8.3513 ms, across 16.1061 ms (hand figures, five digits)."""
    tree = TwoLevelTree(4, 8, per_leaf=4, nvlink=900e9, card=50e9)
    time = seconds(tree, np.arange(32), "all_reduce", "hierarchical", 2.0**32)
    assert time * 1e3 == pytest.approx(8.3513 + 16.1061, abs=1e-4)


def test_ring_latency_is_the_largest_run_of_edges():
    """Sends are pipelined: n-1 edges in a row, the worst ones; twice for an all-reduce."""
    star = Star(4, B, latency=np.array([1e-6, 2e-6, 3e-6, 4e-6]))
    everyone = range(4)
    assert seconds(star, everyone, "all_gather", "ring", 0.0) == pytest.approx(9e-6)
    assert seconds(star, everyone, "all_reduce", "ring", 0.0) == pytest.approx(18e-6)
    assert seconds(star, everyone, "all_gather", "direct", 0.0) == pytest.approx(4e-6)
    assert seconds(star, everyone, "broadcast", "ring", 0.0, root=1) == pytest.approx(9e-6)  # edges 1, 2, 3
    assert seconds(star, everyone, "reduce", "ring", 0.0, root=3) == pytest.approx(6e-6)  # 2>1, 1>0, 0>3: backwards


def test_uneven_all_to_all_is_held_by_the_busiest_port():
    splits = np.array([[0, 6, 2], [1, 5, 3], [4, 4, 0.0]]) * 1e6
    off = splits * (1 - np.eye(3))
    busiest = max(off.sum(axis=0).max(), off.sum(axis=1).max())
    largest_input = splits.sum(axis=1).max()
    time = seconds(Star(3, B, A), range(3), "all_to_all", "direct", largest_input, splits=splits)
    # One rate couples the flows, the largest flow's: the busiest port is full all the time.
    assert time == pytest.approx(A + busiest / B, rel=1e-9)


# -- binding


def test_binding_many_instances_equals_one_by_one():
    tree = TwoLevelTree(4, over=2.0, latency=(1e-6, 2e-6, 3e-6))
    members = np.arange(16).reshape(4, 4).T  # rails: one accelerator of each host
    phases = collectives.phases("all_to_all", "direct", 4) + collectives.phases("all_reduce", "ring", 4)
    together = bind.bind(tree, members, phases)
    for g, row in enumerate(members):
        for many, one in zip(together, bind.bind(tree, row[np.newaxis], phases), strict=True):
            part = slice(many.ptr[g], many.ptr[g + 1])
            np.testing.assert_array_equal(many.link[part], one.link)
            np.testing.assert_allclose(many.weight[part], one.weight, rtol=1e-12)
            assert many.latency[g] == one.latency[0]
            assert many.rate_alone[g] == pytest.approx(one.rate_alone[0])


def test_slabs_change_nothing(monkeypatch):
    tree = TwoLevelTree(4, over=2.0)
    members = np.arange(16).reshape(2, 8)
    phases = collectives.phases("all_to_all", "direct", 8)
    (whole,) = bind.bind(tree, members, phases)
    monkeypatch.setattr(bind, "_FLOWS_AT_ONCE", 7)
    (slabs,) = bind.bind(tree, members, phases)
    np.testing.assert_array_equal(slabs.link, whole.link)
    np.testing.assert_array_equal(slabs.ptr, whole.ptr)
    np.testing.assert_allclose(slabs.weight, whole.weight, rtol=1e-12)


def test_binding_carries_every_byte():
    """Weights x bytes of the largest flow = what each accelerator sends and receives."""
    (bound,) = place(star := Star(5), range(5), "all_to_all", "direct")
    carried = np.zeros(10)
    carried[bound.link] = bound.weight * bound.fraction
    assert len(star.index) == 10
    np.testing.assert_allclose(carried, 4 / 5)


def test_domain_pattern_labels_by_first_appearance():
    star = Star(6, domain=[7, 7, 3, 3, 9, 9])
    members = np.array([[0, 2, 1], [4, 5, 0], [3, 0, 5]])
    assert bind.domain_pattern(star, members).tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 2]]


def test_fastest_takes_few_hops_for_small_and_both_levels_for_large():
    tree = TwoLevelTree(8, 8, per_leaf=4, spines=4, latency=(1e-6, 3e-6, 5e-6))
    members = np.arange(64)[np.newaxis]
    assert bind.fastest(tree, members, "all_reduce", 1e3)[0] == "direct"
    name, bound = bind.fastest(tree, members, "all_reduce", 1e9)
    assert name == "hierarchical"
    times = [seconds(tree, members[0], "all_reduce", a, 1e9) for a in ("ring", "direct", "hierarchical")]
    assert bind.predict(bound, 1e9)[0] == min(times)


def test_fastest_for_one_member_is_free():
    name, bound = bind.fastest(Star(1), np.array([[0]]), "all_reduce", 1e9)
    assert (name, bound) == ("ring", ())
    assert bind.predict(bound, 1e9).tolist() == [0.0]


# -- phases against steps


def run_phases(fabric, jobs, size=S):
    """Seconds of each of several collectives at once, as the engine runs them: latency, then one flow per phase."""
    clock = Clock()
    network = Network(clock, fabric.capacity)
    ends = {}

    def go(job, phases):
        if not phases:
            ends[job] = clock.now
            return
        phase = phases[0]
        route = network.route(phase.link, phase.weight)
        amount = phase.fraction * size
        begin = clock.now + phase.latency[0]
        clock.call_at(begin, lambda _: network.start(route, amount, lambda: go(job, phases[1:])))

    for job, (time, members, collective, algorithm) in enumerate(jobs):
        bound = place(fabric, members, collective, algorithm)
        clock.call_at(time, lambda _, job=job, bound=bound: go(job, bound))
    clock.run()
    return np.array([ends[job] - jobs[job][0] for job in range(len(jobs))]), network.link_bytes()


def run_steps(fabric, jobs, size=S):
    """The same, chunk by chunk."""
    clock = Clock()
    network = Network(clock, fabric.capacity)
    ends = {}
    for job, (time, listed, collective, algorithm) in enumerate(jobs):
        members = np.asarray(listed)
        domains = bind.domain_pattern(fabric, members[np.newaxis])[0]
        steps = collectives.steps(collective, algorithm, len(members), domains=domains)
        chunk_bytes = collectives.chunks(collective, algorithm, len(members)) * size
        done = lambda job=job: ends.update({job: clock.now})  # noqa: E731
        start = lambda _, m=members, s=steps, c=chunk_bytes, d=done: play(network, fabric, m, s, c, d)  # noqa: E731
        clock.call_at(time, start)
    clock.run()
    return np.array([ends[job] - jobs[job][0] for job in range(len(jobs))]), network.link_bytes()


def rails(hosts, per_host):
    return [np.arange(hosts) * per_host + rail for rail in range(per_host)]


def shuffled(n, groups, seed):
    return np.random.default_rng(seed).permutation(n).reshape(groups, -1)


OVER = {"hosts": 8, "per_host": 4, "per_leaf": 2, "spines": 2}
STATIC = {
    "ring alone": (OVER, [(0, rails(8, 4)[0], "all_reduce", "ring")]),
    "4 rings, 4:1": (OVER | {"over": 4.0}, [(0, m, "all_reduce", "ring") for m in rails(8, 4)]),
    "gathers and scatters, 4:1": (
        OVER | {"over": 4.0},
        [(0, m, c, "ring") for m in rails(8, 4) for c in ("all_gather", "reduce_scatter")],
    ),
    "4 rings, a slow card": (
        OVER | {"over": 4.0, "slow": {("card", "up", 0): 0.5}},
        [(0, m, "all_reduce", "ring") for m in rails(8, 4)],
    ),
    "4 rings, hashed": (OVER | {"hashed": True}, [(0, m, "all_reduce", "ring") for m in rails(8, 4)]),
    "rings placed at random, 4:1": (OVER | {"over": 4.0}, [(0, m, "all_reduce", "ring") for m in shuffled(32, 4, 1)]),
    "rings that share some leaves, offset": (
        OVER | {"over": 4.0},
        [(0, m[:6], "all_reduce", "ring") for m in rails(8, 4)[:2]]
        + [(2e-3, m[3:], "all_reduce", "ring") for m in rails(8, 4)[2:]],
    ),
    "all-to-all alone": (OVER, [(0, rails(8, 4)[0], "all_to_all", "direct")]),
    "4 all-to-alls, 4:1": (OVER | {"over": 4.0}, [(0, m, "all_to_all", "direct") for m in rails(8, 4)]),
    "4 all-to-alls, hashed": (OVER | {"hashed": True}, [(0, m, "all_to_all", "direct") for m in rails(8, 4)]),
    "all-to-alls placed at random, 4:1": (
        OVER | {"over": 4.0},
        [(0, m, "all_to_all", "direct") for m in shuffled(32, 4, 2)],
    ),
    "direct all-reduces, 4:1": (OVER | {"over": 4.0}, [(0, m, "all_reduce", "direct") for m in rails(8, 4)]),
    "hierarchical": (OVER, [(0, np.arange(32), "all_reduce", "hierarchical")]),
    "hierarchical, 4:1": (OVER | {"over": 4.0}, [(0, np.arange(32), "all_reduce", "hierarchical")]),
    "hierarchical, a slow spine link": (
        OVER | {"over": 2.0, "slow": {("spine", "up", 1, 0): 0.5}},
        [(0, np.arange(32), "all_reduce", "hierarchical")],
    ),
    "hierarchical gather and scatter": (
        OVER | {"over": 2.0},
        [(0, np.arange(16), "all_gather", "hierarchical"), (0, np.arange(16, 32), "reduce_scatter", "hierarchical")],
    ),
}


@pytest.mark.parametrize("name", STATIC)
def test_phases_equal_steps_under_static_contention(name):
    fabric, jobs = STATIC[name]
    tree = TwoLevelTree(**fabric)
    by_phases, bytes_by_phases = run_phases(tree, jobs)
    by_steps, bytes_by_steps = run_steps(tree, jobs)
    np.testing.assert_allclose(by_phases, by_steps, rtol=1e-3)  # the claim: 0.1 %
    np.testing.assert_allclose(bytes_by_phases, bytes_by_steps, rtol=1e-9)


@pytest.mark.parametrize("name", STATIC)
def test_phases_charge_latency_in_full(name):
    """Where one link holds a ring up, its steps hide latency of the other edges: at most all of it."""
    fabric, jobs = STATIC[name]
    tree = TwoLevelTree(**fabric, latency=(1e-6, 2e-6, 3e-6))
    by_phases, by_steps = run_phases(tree, jobs)[0], run_steps(tree, jobs)[0]
    latency = np.array([sum(phase.latency[0] for phase in place(tree, *job[1:])) for job in jobs])
    assert np.all(by_phases <= by_steps + latency + 1e-3 * by_steps)
    assert np.all(by_phases >= by_steps * (1 - 1e-3))


def test_ring_broadcast_is_the_limit_of_thin_pieces():
    n = 6
    jobs = [(0, np.arange(n), "broadcast", "ring")]
    by_phases, by_steps = run_phases(Star(n, B), jobs)[0][0], run_steps(Star(n, B), jobs)[0][0]
    pieces = len(collectives.chunks("broadcast", "ring", n))
    assert by_steps == pytest.approx(by_phases * (1 + (n - 2) / pieces), rel=1e-9)


def test_steps_alone_take_the_closed_form():
    for n in (2, 3, 8):
        (time,), _ = run_steps(Star(n, B, A), [(0, np.arange(n), "all_reduce", "ring")])
        assert time == pytest.approx(2 * (n - 1) * (A + S / (n * B)), rel=1e-9)


@given(st.integers(2, 6), st.lists(st.floats(0, 50e-6), min_size=6, max_size=6), st.floats(1e3, 1e8))
@settings(max_examples=30, deadline=None)
def test_ring_latency_covers_the_steps(n, latency, size):
    """Edges of unequal latency: exact for one round, for two an upper bound by less than one edge."""
    star = Star(n, B, np.array(latency[:n]))
    for collective, slack in (("all_gather", 0.0), ("all_reduce", max(latency[:n]))):
        (by_steps,), _ = run_steps(star, [(0, np.arange(n), collective, "ring")], size)
        by_phases = seconds(star, range(n), collective, "ring", size)
        assert by_steps * (1 - 1e-9) <= by_phases <= by_steps + slack + 1e-9 * by_steps


@pytest.mark.parametrize("preset", ["fattree", "torus", "fiber"])
def test_on_the_fabrics_that_come_with_the_project(preset):
    fabric = load(preset, ranks=64)
    everyone = np.arange(64)[np.newaxis]
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        name, bound = bind.fastest(fabric, everyone, collective, S)
        (time,) = bind.predict(bound, S)
        out = np.bincount(fabric.link_src, fabric.capacity)[:64].max()  # all links of one accelerator
        assert time >= collectives.bus_factor(collective, 64) * S / out * (1 - 1e-12), name
    jobs = [(0, np.arange(64), "all_to_all", "direct"), (0, np.arange(8), "all_reduce", "ring")]
    (by_phases, bytes_by_phases), (_, bytes_by_steps) = run_phases(fabric, jobs), run_steps(fabric, jobs)
    assert np.all(by_phases > 0)
    np.testing.assert_allclose(bytes_by_phases, bytes_by_steps, rtol=1e-9)
