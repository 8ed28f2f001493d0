"""No algorithm is faster than its bytes allow, on any fabric; and sums over pairs equal the pairs."""

from __future__ import annotations

import numpy as np
import pytest
from built import build, fabrics
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network import bind, collectives
from emulator.network.choose import place_all, ways
from emulator.network.layout import layout, layout_pattern

COLLECTIVES = [c for c in collectives.COLLECTIVES if c not in ("send", "barrier")]


def every_way(fabric, members, collective, root=0):
    where = layout(fabric, members)
    names = collectives.algorithms(collective, len(members), where.domains, where.grid, every=True)
    found = [way for name in names for way in ways(fabric, collective, where, name, root=root)]
    return place_all(fabric, members[np.newaxis], found)


def across(collective, inside, n, root_inside):
    """Bytes, as parts of S, that have to leave a set with ``inside`` of the n members: whatever the algorithm."""
    outside = n - inside
    if not inside or not outside:
        return 0.0
    return {
        "all_reduce": 1.0,  # the sum of what is inside
        "all_gather": inside / n,
        "reduce_scatter": outside / n,
        "all_to_all": inside * outside / n,
        "broadcast": float(root_inside),
        "reduce": float(not root_inside),
        "gather": 0.0 if root_inside else inside / n,
        "scatter": outside / n if root_inside else 0.0,
    }[collective]


@given(fabrics(), st.data())
@settings(max_examples=60, deadline=None)
def test_no_cut_carries_more_than_it_can(fabric, data):
    """Time is at least the bytes that must cross any set of nodes over the capacity of the links out of it.

    Sets of one accelerator are its network card, halves of all nodes the bisection. In-network reduction obeys it too.
    """
    n = data.draw(st.integers(1, min(fabric.accelerators, 12)))
    members = np.array(data.draw(st.permutations(range(fabric.accelerators)))[:n])
    collective = data.draw(st.sampled_from(COLLECTIVES))
    root = data.draw(st.integers(0, n - 1))
    size = data.draw(st.floats(1.0, 1e10))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    placed = every_way(fabric, members, collective, root)
    sides = [np.arange(fabric.nodes) == a for a in members]
    sides += [~side for side in sides]
    sides += [rng.random(fabric.nodes) < 0.5 for _ in range(8)]
    sides += [np.concatenate([fabric.domain == d, np.zeros(fabric.nodes - fabric.accelerators, bool)]) for d in (0, 1)]
    for side in sides:
        needed = across(collective, int(side[members].sum()), n, bool(side[members[root]])) * size
        capacity = fabric.capacity[side[fabric.link_src] & ~side[fabric.link_dst]].sum()
        if needed:
            assert capacity > 0
        for way, bound in placed:
            (time,) = way.seconds(bound, size)
            assert time * (1 + 1e-9) * capacity >= needed, way.name


@given(fabrics(), st.data())
@settings(max_examples=40, deadline=None)
def test_sends_and_receives_bound_an_all_reduce(fabric, data):
    """Made of sends, an all-reduce moves 2 (n-1) S (Patarasuk and Yuan 2009): no less time than all cards together."""
    n = data.draw(st.integers(2, min(fabric.accelerators, 12))) if fabric.accelerators > 1 else 1
    members = np.array(data.draw(st.permutations(range(fabric.accelerators)))[:n])
    out = np.bincount(fabric.link_src, fabric.capacity, fabric.nodes)[members].sum()
    for way, bound in every_way(fabric, members, "all_reduce"):
        assert n == 1 or way.seconds(bound, 1e9)[0] * (1 + 1e-9) >= 2 * (n - 1) * 1e9 / out, way.name


@pytest.mark.parametrize("switches", ["nvls", "sharp"])
def test_in_network_reduction_has_its_own_bound(switches):
    """A card has to send S and to receive S, no more: less than any algorithm of sends needs, from 3 members on."""
    levels = {"leaf": {"kind": "tier", "radix": 8, "down": 4}, "spine": {"kind": "tier", "radix": 4}}
    if switches == "nvls":
        levels = {"node": {"kind": "switch", "size": 16}}
    fabric = build(levels, 16, in_network=[switches])
    where = layout(fabric, np.arange(16))
    if switches == "sharp":  # one server per accelerator
        where = type(where)(np.arange(16))
    ((way, bound),) = place_all(fabric, np.arange(16)[np.newaxis], ways(fabric, "all_reduce", where, switches))
    (time,) = way.seconds(bound, 1e9)
    assert 1.0 <= time <= 1.1 < 2 * 15 / 16


@given(fabrics(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_sum_over_pairs_equals_the_pairs(fabric, data):
    whole = data.draw(st.booleans())
    n = fabric.accelerators if whole else data.draw(st.integers(1, fabric.accelerators))
    members = np.array(data.draw(st.permutations(range(fabric.accelerators)))[:n])
    summed = fabric.all_pairs(members)
    if summed is None:
        return
    link, weight, latency = summed
    listed = bind.bind(fabric, members[np.newaxis], [collectives.AllPairs(n, 1 / n).listed])[0]
    np.testing.assert_array_equal(link, listed.link)
    np.testing.assert_allclose(weight, listed.weight, rtol=1e-9)
    assert latency == pytest.approx(listed.latency[0], rel=1e-12)


@pytest.mark.parametrize("shape", ["4x4x4", "2x3", "8"])
def test_tori_and_trees_have_a_sum(shape):
    level = {"kind": "torus", "shape": shape}
    for routing in ("spread", "dimension-order"):
        fabric = build({"ici": level}, 1, routing=routing)
        assert fabric.all_pairs(np.arange(fabric.accelerators)) is not None
        assert fabric.all_pairs(np.arange(fabric.accelerators - 1)) is None


def test_65536_members_exchange_at_little_cost():
    node = {"kind": "switch", "size": 8, "bandwidth": 450e9}
    leaf, spine, core = ({"kind": "tier", "radix": 64, "bandwidth": 50e9} for _ in range(3))
    fabric = build({"node": node, "leaf": leaf | {"rails": 8}, "spine": spine, "core": core}, 65_536)
    members = np.arange(65_536)
    where = layout(fabric, members)
    ((way, bound),) = place_all(fabric, members[np.newaxis], ways(fabric, "all_to_all", where, "direct"))
    (time,) = way.seconds(bound, 1e9)
    assert time == pytest.approx((65_536 - 8) / 65_536 * 1e9 / 50e9, rel=1e-9)  # what leaves the node, over the card


def test_groups_share_phases_only_where_they_lie_alike():
    fabric = build({"ici": {"kind": "torus", "shape": "4x4"}}, 16)
    rows, columns = np.arange(16).reshape(4, 4), np.arange(16).reshape(4, 4).T
    pattern = layout_pattern(fabric, np.concatenate([rows, columns, rows[:1, ::-1], [[0, 1, 4, 5]], [[0, 1, 2, 5]]]))
    assert len(np.unique(pattern[:8], axis=0)) == 1
    assert len(np.unique(pattern, axis=0)) == 4


def test_a_part_of_a_closed_axis_is_a_line():
    fabric = build({"ici": {"kind": "torus", "shape": "8x2"}}, 16)
    assert layout(fabric, np.arange(16)).grid.closed == (True, False)
    assert layout(fabric, np.arange(8)).grid.closed == (False, False)  # half of the long axis
    assert layout(fabric, np.arange(0, 16, 4)).grid.closed == (True,)  # every other place all around
    assert layout(fabric, np.array([0, 3, 5])).grid is None
    assert layout(fabric, np.array([7])).grid is None
