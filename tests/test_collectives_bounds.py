"""No algorithm is faster than its bytes allow, on any fabric; and sums over pairs equal the pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from built import build, clos, fabrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import composite

from emulator.network import bind, collectives
from emulator.network.choose import place_all, ways
from emulator.network.layout import layout, layout_pattern
from emulator.network.measure import measure

COLLECTIVES = [c for c in collectives.COLLECTIVES if c not in ("send", "barrier")]
UNEVEN = ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"]


def every_way(fabric, members, collective, root=0, splits=None):
    where = layout(fabric, members)
    names = collectives.algorithms(
        collective, len(members), where.domains, where.grid, every=True, switches=fabric.in_network, splits=splits
    )
    found = [way for name in names for way in ways(fabric, collective, where, name, root=root, splits=splits)]
    return place_all(fabric, members[np.newaxis], found)


def across(collective, inside, root, parts):
    """Bytes that have to leave the members ``inside`` (bool[n]), whatever the algorithm.

    ``parts``: bytes of each member's part (f64[n]), of an all-to-all from each to each (f64[n, n]); S is their sum, of
    an all-to-all the largest row's.
    """
    outside = ~inside
    if not inside.any() or not outside.any():
        return 0.0
    if collective == "all_to_all":
        return parts[np.ix_(inside, outside)].sum()
    return {
        "all_reduce": parts.sum(),  # the sum of what is inside
        "all_gather": parts[inside].sum(),
        "reduce_scatter": parts[outside].sum(),
        "broadcast": parts.sum() * inside[root],
        "reduce": parts.sum() * outside[root],
        "gather": parts[inside].sum() * outside[root],
        "scatter": parts[outside].sum() * inside[root],
    }[collective]


def least_seconds(fabric, members, collective, root, parts, seed):
    """Time that the bytes need which must cross any set of nodes, over the capacity of the links out of it.

    Sets of one accelerator are its network card, halves of all nodes the bisection.
    """
    rng = np.random.default_rng(seed)
    sides = [np.arange(fabric.nodes) == a for a in members]
    sides += [~side for side in sides]
    sides += [rng.random(fabric.nodes) < 0.5 for _ in range(8)]
    sides += [np.concatenate([fabric.domain == d, np.zeros(fabric.nodes - fabric.accelerators, bool)]) for d in (0, 1)]
    least = 0.0
    for side in sides:
        needed = across(collective, side[members], root, parts)
        capacity = fabric.capacity[side[fabric.link_src] & ~side[fabric.link_dst]].sum()
        if needed:
            assert capacity > 0
            least = max(least, needed / capacity)
    return least


def even(collective, n, size):
    return np.full((n, n) if collective == "all_to_all" else n, size / n)


@composite
def groups(draw, of, most=12):
    """A fabric, some of its accelerators in any order, a root, bytes, a seed."""
    fabric = draw(of)
    n = draw(st.integers(1, min(fabric.accelerators, most)))
    among = draw(st.sampled_from([n, fabric.accelerators]))  # n: whole servers, as hierarchical algorithms need them
    members = np.array(draw(st.permutations(range(among)))[:n])
    return fabric, members, draw(st.integers(0, n - 1)), draw(st.floats(1.0, 1e10)), draw(st.integers(0, 1 << 30))


@given(groups(fabrics()), st.sampled_from(COLLECTIVES))
@settings(max_examples=60, deadline=None)
def test_no_cut_carries_more_than_it_can(group, collective):
    fabric, members, root, size, seed = group
    least = least_seconds(fabric, members, collective, root, even(collective, len(members), size), seed)
    for way, bound in every_way(fabric, members, collective, root):
        assert way.seconds(bound, size)[0] * (1 + 1e-9) >= least, way.name


@given(groups(clos()), st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]))
@settings(max_examples=120, deadline=None)
def test_switches_that_reduce_obey_the_cuts_too(group, collective):
    fabric, members, root, size, seed = group
    fabric = replace(fabric, in_network=("nvls", "sharp"))
    least = least_seconds(fabric, members, collective, root, even(collective, len(members), size), seed)
    for way, bound in every_way(fabric, members, collective):
        assert way.seconds(bound, size)[0] * (1 + 1e-9) >= least, way.name


@given(groups(fabrics()), st.sampled_from(UNEVEN))
@settings(max_examples=60, deadline=None)
def test_no_cut_carries_more_than_it_can_of_uneven_parts(group, collective):
    fabric, members, root, size, seed = group
    parts = even(collective, len(members), size)
    parts *= np.random.default_rng(seed).integers(0, 4, parts.shape)
    size = parts.sum(axis=-1).max()
    least = least_seconds(fabric, members, collective, root, parts, seed)
    for way, bound in every_way(fabric, members, collective, root, splits=parts):
        assert way.seconds(bound, size)[0] * (1 + 1e-9) >= least, way.name


@given(groups(fabrics(), most=6), st.sampled_from(COLLECTIVES))
@settings(max_examples=60, deadline=None)
def test_steps_obey_the_cuts_too(group, collective):
    fabric, members, root, size, seed = group
    least = least_seconds(fabric, members, collective, root, even(collective, len(members), size), seed)
    for row in measure(fabric, members, collective, [size], mode="steps", root=root):
        assert row.seconds * (1 + 1e-9) >= least, row.algorithm


@given(groups(fabrics()), st.sampled_from(COLLECTIVES))
@settings(max_examples=60, deadline=None)
def test_more_bytes_take_no_less_time(group, collective):
    """Though more of a ring's latencies is hidden."""
    fabric, members, root, size, _ = group
    for way, bound in every_way(fabric, members, collective, root):
        times = [way.seconds(bound, size * factor)[0] for factor in (0.0, 0.5, 1.0, 1.1, 2.0)]
        assert np.all(np.diff(times) >= -1e-9 * times[-1]), way.name


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
