"""How long collectives take alone: closed forms on an idle network, and the binding of phases to links."""

from __future__ import annotations

import numpy as np
import pytest
from collective_runs import A, B, S, place, seconds, torus
from fabrics import Star, TwoLevelTree

from emulator.network import bind, collectives
from emulator.network.choose import fastest
from emulator.network.collectives import tree
from emulator.network.layout import layout

# -- closed forms (cost formulas of Thakur et al. 2005 and the scaling book, with reduction arithmetic free)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 13, 64])
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
        ("all_gather", "bruck"): depth * A + (n - 1) / n * S / B,
        ("all_to_all", "bruck"): depth * A + sum(m.bit_count() for m in range(n)) / n * S / B,
    }
    core = 1 << (n.bit_length() - 1)
    if n == core:
        halving = depth * A + (n - 1) / n * S / B
        expected |= {
            ("reduce_scatter", "halving_doubling"): halving,
            ("all_gather", "halving_doubling"): halving,
            ("all_reduce", "halving_doubling"): 2 * halving,
            ("all_reduce", "recursive_doubling"): depth * (A + S / B),
        }
        if n > 1:
            assert seconds(star, everyone, "all_to_all", "bruck") == pytest.approx(depth * (A + S / 2 / B), rel=1e-9)
    else:  # MPICH's form: one exchange of the whole buffer before and one after
        rounds = n.bit_length() - 1
        expected |= {
            ("all_reduce", "halving_doubling"): (2 * rounds + 2) * A + (2 * (core - 1) / core + 2) * S / B,
            ("all_reduce", "recursive_doubling"): (rounds + 2) * (A + S / B),
        }
    if n > 3:
        tree_depth = int(tree.depths(tree.binary_pair(n)[0]).max())
        expected["all_reduce", "tree"] = 2 * tree_depth * A + 2 * S / B
    for (collective, algorithm), time in expected.items():
        assert seconds(star, everyone, collective, algorithm) == pytest.approx(time, rel=1e-9), (collective, algorithm)


@pytest.mark.parametrize("shape", [(4,), (5,), (8,), (4, 4), (3, 3, 3), (4, 4, 4)])
def test_closed_forms_on_a_torus(shape):
    """d equal closed axes of X, all links of all axes in use: d floor(X/2) a + (n-1)/n S/(2 d B) (scaling book)."""
    fabric, n, d = torus(shape), int(np.prod(shape)), len(shape)
    once = d * (shape[0] // 2) * A + (n - 1) / n * S / (2 * d * B)
    for collective, rounds in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        time = seconds(fabric, np.arange(n), collective, "multi_ring")
        assert time == pytest.approx(rounds * once, rel=1e-9)
    burst = n * d * sum(min(k, shape[0] - k) for k in range(shape[0])) / shape[0] / (2 * d)  # hops over links
    time = seconds(fabric, np.arange(n), "all_to_all", "direct")
    assert time == pytest.approx(d * (shape[0] // 2) * A + burst * S / n / B, rel=1e-9)


@pytest.mark.parametrize("length", [2, 3, 7])
def test_closed_form_on_a_line(length):
    time = seconds(torus((length,), wrap=False), np.arange(length), "all_gather", "multi_ring")
    assert time == pytest.approx((length - 1) * A + (length - 1) / length * S / B, rel=1e-9)


def test_torus_reference_numbers():
    """4x4x4, 45e9 per link, 2^30 bytes, a = 0: 3.9768 ms would be all data over all links; own data stays: 63/64."""
    fabric = torus((4, 4, 4))
    time = seconds(fabric, np.arange(64), "all_gather", "multi_ring", 2.0**30) - 6 * A
    assert time * B / 45e9 * 1e3 == pytest.approx(3.9768 * 63 / 64, abs=1e-4)


def test_unequal_axes_of_a_torus():
    """2x8: the two parts take the long axis in turn. Both stages are as long as the long axis needs."""
    fabric = torus((2, 8))
    long_first, long_last = 7 / 2 / 32, 2 * 7 / 2 / 32  # a part is half of the data, its chunk 1/32 of S
    time = seconds(fabric, np.arange(16), "all_gather", "multi_ring")
    short = {"first": 1 / 32, "last": 8 / 32}
    stages = max(long_first, short["first"]) + max(long_last, short["last"])
    assert time == pytest.approx(2 * 4 * A + stages * S / B, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_closed_forms_in_the_switch(n):
    star = Star(n, B, A)
    for collective, rounds, bytes_ in [
        ("all_reduce", 2, 1 + 1 / n), ("all_gather", 1, 1.0), ("reduce_scatter", 1, 1.0),
    ]:  # fmt: skip
        time = seconds(star, range(n), collective, "nvls")
        assert time == pytest.approx(rounds * A + bytes_ * S / B, rel=1e-9)
    singles = Star(n, B, A, domain=np.arange(n))
    assert seconds(singles, range(n), "all_reduce", "sharp") == pytest.approx(A + S / B, rel=1e-9)


def test_in_switch_reference_number():
    """p = 8, 450e9, 2^30: 2.6844 ms (hand figure)."""
    assert seconds(Star(8, 450e9), range(8), "all_reduce", "nvls", 2.0**30) * 1e3 == pytest.approx(2.6844, abs=5e-5)


@pytest.mark.parametrize(("g", "k"), [(2, 2), (4, 4), (8, 8)])
def test_closed_forms_across_servers(g, k):
    """Rings use every card, and their crossings hide the latencies inside; trees load a card twice with its part, SHARP
    once; two hops take the slower of both."""
    b1, b2, a1, a2 = 900e9, 50e9, 1e-6, 5e-6
    fabric, n, everyone = TwoLevelTree(k, g, per_leaf=k, nvlink=b1, card=b2, latency=(a1, a2, a2)), g * k, range(g * k)
    card = S / g / b2
    depth = int(tree.depths(tree.binary_pair(k)[0]).max())
    expected = {
        ("all_reduce", "ring"): 2 * (n - 1) / n * card + a2,
        ("all_gather", "ring"): (n - 1) / n * card + a2,
        ("all_reduce", "tree"): (2 if k > 2 else 1) * card + 2 * ((g - 1) * a1 + depth * a2),
        ("all_reduce", "nvls_tree"): (2 if k > 2 else 1) * card + 2 * a1 + 2 * depth * a2,
        ("all_reduce", "sharp"): card + 2 * a1 + a2,
        ("all_to_all", "two_hop"): max((k - 1) / k * S / b2, (g - 1) / g * S / b1) + a1 + a2,
        ("all_to_all", "two_hop_combine"): max((k - 1) / k * S / b2, (g - 1) / g * S / b1) + a1 + a2,
    }
    for (collective, algorithm), time in expected.items():
        assert seconds(fabric, everyone, collective, algorithm) == pytest.approx(time, rel=1e-9), algorithm
    # Without bytes nothing is hidden: one turn without one edge inside, two turns without two in a row.
    turn = (n - k) * a1 + k * a2
    assert seconds(fabric, everyone, "all_gather", "ring", 0.0) == pytest.approx(turn - a1)
    two = 2 * turn - a1 - (a1 if g > 2 else a2)
    assert seconds(fabric, everyone, "all_reduce", "ring", 0.0) == pytest.approx(two)
    once = seconds(fabric, everyone, "all_to_all", "two_hop", copies=2.0) - a1 - a2
    assert once == pytest.approx(max((k - 1) / k * S / b2 / 2, (g - 1) / g * S / b1), rel=1e-9)


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
    """Sends are pipelined: n-1 edges in a row, the worst ones; 2(n-1) for an all-reduce."""
    star = Star(4, B, latency=np.array([1e-6, 2e-6, 3e-6, 4e-6]))
    everyone = range(4)
    assert seconds(star, everyone, "all_gather", "ring", 0.0) == pytest.approx(9e-6)
    assert seconds(star, everyone, "all_reduce", "ring", 0.0) == pytest.approx(17e-6)  # of two turns all but 1 and 2
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


def test_fastest_takes_few_hops_for_small_and_all_cards_for_large():
    tree = TwoLevelTree(8, 8, per_leaf=4, spines=4, latency=(1e-6, 3e-6, 5e-6))
    members = np.arange(64)[np.newaxis]
    where = layout(tree, members[0])
    assert fastest(tree, members, where, "all_reduce", 1e3)[0].name == "direct"
    assert fastest(tree, members, where, "all_reduce", 1e10)[0].name == "ring"
    way, placed = fastest(tree, members, where, "all_reduce", 1e9)
    times = [seconds(tree, members[0], "all_reduce", a, 1e9) for a in ("ring", "direct", "hierarchical", "tree")]
    assert way.seconds(placed, 1e9)[0] == min(times)


def test_fastest_for_one_member_is_free():
    way, placed = fastest(Star(1), np.array([[0]]), layout(Star(1), np.array([0])), "all_reduce", 1e9)
    assert (way.name, placed) == ("ring", ())
    assert way.seconds(placed, 1e9).tolist() == [0.0]
