"""Phases against steps: collectives that share a network, played as coupled groups and chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest
from collective_runs import A, B, S, place, run_phases, run_steps, seconds, torus
from fabrics import Star, TwoLevelTree
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network import collectives
from emulator.network.choose import fastest
from emulator.network.clock import Clock
from emulator.network.collectives import tree as tree_module
from emulator.network.fluid import Network
from emulator.network.layout import layout
from emulator.network.steps_player import play
from emulator.topology.load import load


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


@given(
    collective=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    algorithm=st.sampled_from(["hierarchical", "ring on a rail", "direct"]),
    hosts=st.integers(2, 9), per_host=st.integers(2, 5), per_leaf=st.integers(1, 4),
    over=st.sampled_from([1.0, 2.0, 3.0, 4.0, 7.0]), latency=st.tuples(*[st.floats(0, 20e-6)] * 3),
    size=st.floats(3, 9).map(lambda exponent: 10.0**exponent),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_phases_equal_steps_with_latency(collective, algorithm, hosts, per_host, per_leaf, over, latency, size):
    """Alone on an oversubscribed tree, at sizes where latency is all, where it is nothing, and in between."""
    tree = TwoLevelTree(hosts, per_host, per_leaf=per_leaf, over=over, latency=sorted(latency))
    members = rails(hosts, per_host)[0] if algorithm == "ring on a rail" else np.arange(hosts * per_host)
    jobs = [(0, members, collective, algorithm.split()[0])]
    by_phases, by_steps = run_phases(tree, jobs, size)[0], run_steps(tree, jobs, size)[0]
    np.testing.assert_allclose(by_phases, by_steps, rtol=1e-3)  # the claim: 0.1 %


@pytest.mark.parametrize("name", STATIC)
def test_contention_from_others_hides_latency_that_phases_do_not_know(name):
    """Which edges are slow is known of a collective alone: at most its latency too much or too little."""
    fabric, jobs = STATIC[name]
    tree = TwoLevelTree(**fabric, latency=(1e-6, 2e-6, 3e-6))
    for size in (1e6, S):
        by_phases, by_steps = run_phases(tree, jobs, size)[0], run_steps(tree, jobs, size)[0]
        latency = np.array([sum(phase.wait(0.0)[0] for phase in place(tree, *job[1:])) for job in jobs])
        assert np.all(np.abs(by_phases - by_steps) <= latency + 1e-3 * by_steps)


def test_rings_of_one_group_that_share_links_take_turns_in_steps():
    """Phases have all rings on a link at once; steps of few bytes pass there one after the other, and go faster."""
    tree = TwoLevelTree(4, 8, per_leaf=2, latency=(1e-6, 2e-6, 3e-6))
    jobs = [(0, np.arange(32), "all_reduce", "ring")]
    error = [run_phases(tree, jobs, size)[0][0] / run_steps(tree, jobs, size)[0][0] - 1 for size in (1e4, 16e6, S)]
    assert 0 < error[0] < 1e-3
    assert 0.3 < error[1] < 0.35
    assert abs(error[2]) < 1e-9


@pytest.mark.parametrize(("channel", "rounds"), [(0, 2), (1, 1)])
def test_channels_do_not_wait_for_each_other(channel, rounds):
    """20 ms over the card, then 20 ms over NVLink: after each other in one channel, at once in two."""
    tree, one, time = TwoLevelTree(2, 2), np.ones(1, dtype=np.int64), 20e-3
    first = collectives.Step(0 * one, 2 * one, 0 * one, channel=0 * one)
    second = collectives.Step(0 * one, 1 * one, 1 * one, channel=channel * one)
    clock, ends = Clock(), []
    sizes = np.array([50e9, 450e9]) * time
    play(Network(clock, tree.capacity), tree, np.arange(4), [first, second], sizes, lambda: ends.append(clock.now))
    clock.run()
    assert ends == pytest.approx([rounds * time])


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
    """Edges of unequal latency: the largest sum of as many edges in a row as there are steps."""
    star = Star(n, B, np.array(latency[:n]))
    for collective in ("all_gather", "all_reduce"):
        (by_steps,), _ = run_steps(star, [(0, np.arange(n), collective, "ring")], size)
        assert seconds(star, range(n), collective, "ring", size) == pytest.approx(by_steps, rel=1e-9)


@pytest.mark.parametrize("preset", ["fattree", "torus", "fiber"])
def test_on_the_fabrics_that_come_with_the_project(preset):
    fabric = load(preset, ranks=64)
    everyone = np.arange(64)[np.newaxis]
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        way, placed = fastest(fabric, everyone, layout(fabric, everyone[0]), collective, S)
        (time,) = way.seconds(placed, S)
        out = np.bincount(fabric.link_src, fabric.capacity)[:64].max()  # all links of one accelerator
        assert time >= collectives.bus_factor(collective, 64) * S / out * (1 - 1e-12), way.name
    jobs = [(0, np.arange(64), "all_to_all", "direct"), (0, np.arange(8), "all_reduce", "ring")]
    (by_phases, bytes_by_phases), (_, bytes_by_steps) = run_phases(fabric, jobs), run_steps(fabric, jobs)
    assert np.all(by_phases > 0)
    np.testing.assert_allclose(bytes_by_phases, bytes_by_steps, rtol=1e-9)


# -- halving-doubling against steps: the figures of a separate study of the same model


def halving_error(**fabric):
    """(phases - steps) / steps of 8 all-reduces by halving-doubling, one per rail of 16 hosts of 8."""
    tree_ = TwoLevelTree(16, 8, per_leaf=4, spines=4, **fabric)
    jobs = [(0, members, "all_reduce", "halving_doubling") for members in rails(16, 8)]
    by_phases, by_steps = run_phases(tree_, jobs)[0], run_steps(tree_, jobs)[0]
    return by_phases / by_steps - 1


def test_halving_doubling_equals_steps_where_all_paths_are_alike():
    for over in (1.0, 4.0):
        assert np.abs(halving_error(over=over)).max() < 1e-9


def test_halving_doubling_errs_fast_where_paths_differ():
    """Ranks that run ahead compete with slow ones, which a phase forbids: some percent short with hashed paths."""
    error = halving_error(hashed=True)
    assert -0.15 < error.min() <= error.mean() <= 1e-9


SYMMETRIC = [("all_reduce", a) for a in ("multi_ring", "ring", "tree", "halving_doubling", "direct")] + [
    ("all_gather", "multi_ring"), ("reduce_scatter", "multi_ring"), ("all_to_all", "direct"),
]  # fmt: skip


@pytest.mark.parametrize(("collective", "algorithm"), SYMMETRIC)
def test_torus_shapes_that_are_one_another_take_equal_times(collective, algorithm):
    """2x8 and 8x2 with members numbered along the same axis; a mirrored and a shifted 4x4."""
    wide, tall = torus((2, 8)), torus((8, 2))
    number = np.arange(16)
    across = (number % 8) * 2 + number // 8  # the accelerator of 8x2 that stands where `number` stands in 2x8
    both = [seconds(wide, number, collective, algorithm), seconds(tall, across, collective, algorithm)]
    assert both[0] == pytest.approx(both[1], rel=1e-9)
    square = torus((4, 4), routing="dimension-order")
    row, column = np.divmod(number, 4)
    mirrored, shifted = row * 4 + (3 - column), (row + 1) % 4 * 4 + (column + 2) % 4
    times = [seconds(square, members, collective, algorithm) for members in (number, mirrored, shifted)]
    assert times == pytest.approx([times[0]] * 3, rel=1e-9)


@pytest.mark.parametrize(("shape", "algorithm"), [((5,), "multi_ring"), ((4, 4), "multi_ring"), ((3, 3), "direct")])
def test_torus_phases_equal_steps(shape, algorithm):
    fabric = torus(shape)
    jobs = [(0, np.arange(int(np.prod(shape))), "all_gather", algorithm)]
    by_phases, by_steps = run_phases(fabric, jobs), run_steps(fabric, jobs)
    # Without a barrier between stages the last hop of one overlaps the first of the next by a latency at most.
    np.testing.assert_allclose(by_phases[0], by_steps[0], rtol=1e-3)
    np.testing.assert_allclose(by_phases[1], by_steps[1], rtol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16, 31])
def test_trees_differ_from_steps_by_the_filling_of_the_pipe(n, monkeypatch):
    """Up, down and both trees at once: what is left falls as the pieces get thinner, and is known."""
    jobs, star = [(0, np.arange(n), "all_reduce", "tree")], Star(n, B)
    fill = []
    for pieces in (64, 256):
        monkeypatch.setattr(tree_module, "PIECES", pieces)
        fill.append(run_steps(star, jobs)[0][0] / run_phases(star, jobs)[0][0] - 1)
    assert fill[1] == pytest.approx(fill[0] / 4, rel=0.02, abs=1e-9)
    assert fill[0] < n.bit_length() / 64


@pytest.mark.parametrize("over", [1.0, 4.0])
def test_trees_across_servers_are_close_to_their_steps(over):
    jobs = [(0, np.arange(32), "all_reduce", "tree")]
    tree = TwoLevelTree(8, 4, over=over)
    assert run_steps(tree, jobs)[0][0] == pytest.approx(run_phases(tree, jobs)[0][0], rel=0.03)  # 64 pieces: 2.5 %
    slow = TwoLevelTree(8, 4, over=over, latency=(1e-6, 2e-6, 3e-6))
    (by_phases,), (by_steps,) = (run(slow, jobs, 1e6)[0] for run in (run_phases, run_steps))
    assert 0.75 * by_phases < by_steps < by_phases  # cards are busy while the first pieces travel


def test_two_hops_are_the_limit_of_thin_pieces():
    """Steps add the filling of the pipe."""
    servers = TwoLevelTree(4, 2, per_leaf=4)
    (by_phases,), (by_steps,) = (
        run(servers, [(0, np.arange(8), "all_to_all", "two_hop")])[0] for run in (run_phases, run_steps)
    )
    assert by_phases < by_steps < by_phases * (1 + 4 / 16)
