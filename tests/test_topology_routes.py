"""Routes: bytes are conserved, paths are shortest, and the closed forms equal a search on the graph."""

import msgspec
import numpy as np
import pytest
from built import RELATIVE, all_pairs, assert_conserved, build, clos, fabrics, load_of, shares, table, tori
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.topology.explicit import NodeLink, from_node_link, node_link
from emulator.topology.graph import Topology
from emulator.topology.shortest import ShortestPaths
from emulator.topology.spec import decode_quantity


@settings(max_examples=30, deadline=None)
@given(fabrics())
def test_what_flows_into_a_node_flows_out(t: Topology) -> None:
    assert_conserved(t)


@settings(max_examples=30, deadline=None)
@given(fabrics())
def test_every_path_is_as_short_as_the_graph_allows(t: Topology) -> None:
    src, dst = all_pairs(t)
    routes = t.route(src, dst)
    search = ShortestPaths.of(t)
    hops = [int(search.search(a).hops[b]) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
    # a flow's bytes cross as many links as its paths are long
    np.testing.assert_allclose(np.add.reduceat(routes.share, routes.ptr[:-1]) if len(src) else [], hops, rtol=RELATIVE)
    assert t.facts.diameter is None or not hops or max(hops) == t.facts.diameter


@settings(max_examples=30, deadline=None)
@given(fabrics())
def test_no_path_crosses_an_accelerator_that_does_not_forward(t: Topology) -> None:
    src, dst = all_pairs(t)
    routes = t.route(src, dst)
    flow = np.repeat(np.arange(len(src)), np.diff(routes.ptr))
    through = t.link_src[routes.link]
    strange = (through < t.accelerators) & (through != src[flow])
    assert t.forwards or not strange.any()


@settings(max_examples=30, deadline=None)
@given(st.one_of(clos(), tori(routing="spread")))
def test_closed_form_equals_search(t: Topology) -> None:
    src, dst = all_pairs(t)
    if not t.forwards and "node" in " ".join(t.level_names):
        # inside a node the closed form prefers the node's own switch, the search takes the leaf as well
        outside = t.domain[src] != t.domain[dst]
        src, dst = src[outside], dst[outside]
    closed, searched = t.route(src, dst), ShortestPaths.of(t).route(src, dst)
    np.testing.assert_allclose(table(t, closed), table(t, searched), atol=RELATIVE)
    np.testing.assert_allclose(closed.latency, searched.latency, rtol=RELATIVE)


@settings(max_examples=25, deadline=None)
@given(tori(routing="dimension-order"))
def test_dimension_order_equals_walking_one_axis_after_the_other(t: Topology) -> None:
    router = t.router
    src, dst = all_pairs(t)
    routes = t.route(src, dst)
    numbers = np.arange(t.accelerators).reshape(router.shape)
    ends = {}
    for link, (a, b) in enumerate(zip(t.link_src.tolist(), t.link_dst.tolist(), strict=True)):
        ends.setdefault((a, b), []).append(link)
    for flow in range(len(src)):
        expected: dict[tuple[int, int], float] = {}
        here = list(np.unravel_index(src[flow], router.shape))
        there = np.unravel_index(dst[flow], router.shape)
        for axis, length in enumerate(router.shape):
            up, down = (there[axis] - here[axis]) % length, (here[axis] - there[axis]) % length
            if not router.closed[axis]:
                ways = [(1, up)] if there[axis] >= here[axis] else [(-1, down)]
            else:
                ways = [(sign, n) for sign, n in ((1, up), (-1, down)) if n == min(up, down)]
            for sign, steps in ways:
                at = list(here)
                for _ in range(int(steps)):
                    a = int(numbers[tuple(at)])
                    at[axis] = (at[axis] + sign) % length
                    key = (a, int(numbers[tuple(at)]))
                    expected[key] = expected.get(key, 0) + 1 / len(ways)
            here[axis] = there[axis]
        found: dict[tuple[int, int], float] = {}
        for link, share in shares(routes, flow).items():
            key = (int(t.link_src[link]), int(t.link_dst[link]))
            found[key] = found.get(key, 0) + share
        assert found == pytest.approx(expected, rel=RELATIVE)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.data())
def test_bundling_changes_no_time(ranks: int, rails: int, planes: int, over: int, data: st.DataObject) -> None:
    levels = {
        "node": {"kind": "switch", "size": 4, "bandwidth": 4e9},
        "leaf": {"kind": "tier", "radix": 8, "rails": rails, "planes": planes},
        "spine": {"kind": "tier", "radix": 8, "oversubscription": over},
        "core": {"kind": "tier", "radix": 16},
    }
    bundled, each = (build(levels, ranks, bundled=flag) for flag in (True, False))
    src, dst = all_pairs(bundled)
    seed = data.draw(st.integers(0, 2**31))
    amount = np.random.default_rng(seed).uniform(0, 1e9, len(src))
    if len(src):
        slowest = [load_of(t, src, dst, amount).max() for t in (bundled, each)]
        assert slowest[0] == pytest.approx(slowest[1], rel=RELATIVE)
    assert bundled.cables.sum() == each.cables.sum()
    assert bundled.switches.sum() == each.switches.sum() == len(each.switches)
    assert bundled.capacity.sum() == pytest.approx(each.capacity.sum(), rel=RELATIVE)


@settings(max_examples=30, deadline=None)
@given(clos())
def test_a_fabric_written_as_a_graph_and_read_back_is_the_same(t: Topology) -> None:
    back = from_node_link(msgspec.convert(node_link(t), NodeLink, dec_hook=decode_quantity))
    for column in ("link_src", "link_dst", "latency", "cables", "switches", "domain"):
        np.testing.assert_array_equal(getattr(back, column), getattr(t, column))
    np.testing.assert_allclose(back.capacity, t.capacity, rtol=RELATIVE)
    assert list(back.node_names) == list(t.node_names)
    assert [back.level_names[i] for i in back.link_level] == [t.level_names[i] for i in t.link_level]


def test_a_flow_to_itself_takes_no_link_and_no_time() -> None:
    t = build({"ici": {"kind": "torus", "shape": "4x4", "latency": 1e-6}}, 16, routing="dimension-order")
    routes = t.route(np.array([3, 3, 5]), np.array([3, 7, 5]))
    assert routes.ptr.tolist() == [0, 0, 1, 1]
    assert routes.latency.tolist() == [0, 1e-6, 0]


def test_an_unknown_accelerator_is_an_error_not_a_route() -> None:
    t = build({"mesh": {"kind": "full_mesh"}}, 4)
    with pytest.raises(IndexError, match="0 to 3"):
        t.route(np.array([0]), np.array([4]))


@pytest.mark.parametrize("shape", ["8", "4x8", "4x4x4", "6x4x2"])
def test_all_to_all_loads_every_link_of_an_axis_alike(shape: str) -> None:
    # mean distance on an even closed axis is n/4, so N^2 n/4 link crossings share 2N links: N n/8 flows on each
    t = build({"ici": {"kind": "torus", "shape": shape, "double": True}}, 1, routing="dimension-order")
    load = load_of(t, *all_pairs(t), np.full(t.accelerators * (t.accelerators - 1), 1e9))
    for axis, length in enumerate(map(int, shape.split("x"))):
        np.testing.assert_allclose(load[t.link_level == axis], t.accelerators * length / 8, rtol=RELATIVE)


def test_half_way_ties_one_way_make_the_upward_links_half_as_busy_again() -> None:
    both, one = (
        build({"ici": {"kind": "torus", "shape": "4x4x4", "ties": ties}}, 64, routing="dimension-order")
        for ties in ("both", "one")
    )
    amount = np.ones(64 * 63)
    # distances 1 and 2 go up, 1 goes down: 3 against 1, where splitting gives 2 and 2
    assert load_of(one, *all_pairs(one), amount).max() == pytest.approx(
        1.5 * load_of(both, *all_pairs(both), amount).max(), rel=RELATIVE
    )


def test_turning_a_torus_round_changes_no_time() -> None:
    flat, tall = (build({"ici": {"kind": "torus", "shape": s}}, 16, routing="spread") for s in ("2x8", "8x2"))
    amount = np.random.default_rng(1).uniform(size=16 * 15)
    turned = np.arange(16).reshape(2, 8).T.ravel()  # turned[i]: the chip of the flat torus at place i of the tall one
    place = np.argsort(turned)
    src, dst = all_pairs(flat)
    np.testing.assert_allclose(
        np.sort(load_of(flat, src, dst, amount)), np.sort(load_of(tall, place[src], place[dst], amount)), rtol=RELATIVE
    )
