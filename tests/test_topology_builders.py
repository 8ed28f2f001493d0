"""Hypercubes, twisted tori, dragonflies, and topologies as nodes of another: what they are made of."""

from pathlib import Path

import numpy as np
import pytest
from built import all_pairs, build, load_of, table
from fabrics_more import dragonflies, nested, twisted
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.topology.graph import Topology
from emulator.topology.nested import NestedRouter
from emulator.topology.shortest import ShortestPaths
from emulator.topology.show import _bisection, _diameter

RELATIVE = 1e-12  # sums of a few hundred shares


def cube(size: int, **more: object) -> Topology:
    return build({"cube": {"kind": "hypercube", "latency": 1e-6}}, size, **more)


@pytest.mark.parametrize("bits", range(7))
def test_a_hypercube_has_a_cable_where_one_bit_differs(bits: int) -> None:
    t = cube(2**bits)
    ends = set(zip(t.link_src.tolist(), t.link_dst.tolist(), strict=True))
    assert ends == {(a, a ^ (1 << bit)) for a in range(2**bits) for bit in range(bits)}
    assert t.facts.diameter == bits


def test_a_hypercube_grows_to_the_next_power_of_two() -> None:
    assert cube(33).accelerators == 64
    assert "6 cables each" in cube(33).built


@given(st.integers(2, 32), st.data())
@settings(max_examples=20, deadline=None)
def test_on_a_hypercube_hops_are_differing_bits(ranks: int, data: st.DataObject) -> None:
    t = cube(ranks, routing=data.draw(st.sampled_from(["spread", "dimension-order"])))
    src, dst = all_pairs(t)
    hops = [(a ^ b).bit_count() for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
    np.testing.assert_allclose(t.route(src, dst).latency, np.array(hops) * 1e-6, rtol=RELATIVE)


@given(twisted(routing="spread"))
@settings(max_examples=10, deadline=None)
def test_twisted_routes_equal_a_search(t: Topology) -> None:
    src, dst = all_pairs(t)
    closed, searched = t.route(src, dst), ShortestPaths.of(t).route(src, dst)
    np.testing.assert_allclose(table(t, closed), table(t, searched), atol=RELATIVE)
    assert t.facts.diameter == _diameter(t)


@given(twisted())
@settings(max_examples=10, deadline=None)
def test_a_twisted_torus_looks_the_same_from_every_chip_and_along_every_axis(t: Topology) -> None:
    src, dst = all_pairs(t)
    load = load_of(t, src, dst, np.ones(len(src)))
    for axis in range(len(t.router.shape)):  # moving all chips one on changes nothing, so links of an axis are alike
        np.testing.assert_allclose(load[t.link_level == axis], load[t.link_level == axis][0], rtol=1e-9)
    if t.routing == "spread" and len(t.router.shape) == 3:  # FCC and BCC lattices have the symmetry of the cube
        np.testing.assert_allclose(load, load[0], rtol=1e-9)


@pytest.mark.parametrize(("shape", "gain"), [("4x4x8", 1.63), ("4x8x8", 1.31)])
def test_twisting_helps_all_to_all_as_the_paper_says(shape: str, gain: float) -> None:
    # gains measured on TPU v4 (recalled from arXiv 2304.01433); the fluid ideal is a little above what was measured
    slowest = []
    for twist in (False, True):
        level = {"kind": "torus", "shape": shape, "twist": twist}
        t = build({"ici": level}, 1, routing="spread")
        src, dst = all_pairs(t)
        slowest.append(load_of(t, src, dst, np.ones(len(src))).max())
    assert gain < slowest[0] / slowest[1] < 1.1 * gain


@given(dragonflies())
@settings(max_examples=25, deadline=None)
def test_a_dragonfly_joins_all_routers_of_a_group_and_all_groups(t: Topology) -> None:
    router = t.router
    groups, a = router.local.shape[:2]
    of = (np.arange(t.nodes) - t.accelerators) // a  # group of a router
    far = t.link_level == (t.level_names.index("fly global") if groups > 1 else -1)
    between = np.zeros((groups, groups))
    np.add.at(between, (of[t.link_src[far]], of[t.link_dst[far]]), t.cables[far])
    assert len(np.unique(between[~np.eye(groups, dtype=bool)])) <= 1  # every two groups by equally many
    assert not between.diagonal().any()
    ports = np.bincount(t.link_src[far] - t.accelerators, t.cables[far], groups * a)
    assert ports.max(initial=0) <= -(-int(ports.sum()) // (groups * a)) + max(int(between.max(initial=0)), 1)
    there = set(zip(t.link_src[far].tolist(), t.link_dst[far].tolist(), strict=True))
    assert all((b, a) in there for a, b in there)
    assert (t.level_names.index("fly local") if a > 1 else 0) in set(t.link_level.tolist())


@given(dragonflies(rule="spread"))
@settings(max_examples=25, deadline=None)
def test_dragonfly_routes_equal_a_search(t: Topology) -> None:
    src, dst = all_pairs(t)
    closed, searched = (table(t, r.route(src, dst)) for r in (t, ShortestPaths.of(t)))
    far = np.char.endswith(np.array(t.level_names)[t.link_level], "global")
    assert closed[:, far].sum(axis=1).max(initial=0) <= 1 + RELATIVE  # at most one cable between groups
    one = searched[:, far].sum(axis=1) <= 1 + RELATIVE  # in tiny dragonflies two may be as short as one
    np.testing.assert_allclose(closed[one], searched[one], atol=RELATIVE)
    if t.facts.diameter is not None and len(src):
        assert t.facts.diameter == pytest.approx(closed.sum(axis=1).max())


def test_the_dragonfly_of_the_books() -> None:
    t = build({"fly": {"kind": "dragonfly", "hosts": 2, "routers": 4, "globals": 2}}, 72)  # Kim 2008, figure 5: N = 72
    assert len(t.switches) == 36 and t.facts.diameter == 5
    far = t.link_level == t.level_names.index("fly global")
    assert far.sum() == 9 * 8 and (t.cables[far] == 1).all()


@pytest.mark.parametrize("levels", [
    {"node": {"kind": "switch", "size": 2}, "ring": {"kind": "torus", "shape": "4", "joins": "rails"}},
    {"mesh": {"kind": "full_mesh", "size": 4}, "leaf": {"kind": "tier", "radix": 8, "joins": "rails"}},
    {"node": {"kind": "switch", "size": 4}, "outer": {"kind": "switch", "joins": "rails"}},
    {"ici": {"kind": "torus", "shape": "2x2"}, "leaf": {"kind": "tier", "radix": 16}},
])  # fmt: skip
def test_figures_of_nested_fabrics_are_bounds(levels: dict[str, dict[str, object]]) -> None:
    t = build(levels, 8)
    bisection, note = _bisection(t)
    assert "exact" in note and t.facts.bisection >= bisection * (1 - 1e-9)
    assert t.facts.diameter == max(_hops(t))


def _hops(t: Topology) -> list[float]:
    src, dst = all_pairs(t)
    routes = t.route(src, dst)
    return np.round(np.add.reduceat(routes.share, routes.ptr[:-1]), 9).tolist()


@given(nested())
@settings(max_examples=30, deadline=None)
def test_nested_traffic_stays_inside_or_changes_rails_inside(t: Topology) -> None:
    router = t.router
    assert isinstance(router, NestedRouter)
    src, dst = all_pairs(t)
    routes = t.route(src, dst)
    flow = np.repeat(np.arange(len(src)), np.diff(routes.ptr))
    inside = routes.link < router.nodes * router.inner_links
    same = src // router.size == dst // router.size
    assert not (~inside & same[flow]).any()
    hop = np.zeros(len(src), dtype=bool)
    hop[flow[inside]] = True
    moved = src % router.size != dst % router.size
    np.testing.assert_array_equal(hop, moved if router.rails else same)
    outside = flow[~inside]
    if router.rails:  # the network of the target's rail
        rail = (routes.link[~inside] - router.nodes * router.inner_links) // router.outer_links
        np.testing.assert_array_equal(rail, dst[outside] % router.size)


def test_the_nodes_of_a_nest_are_its_domains_and_its_names_are_unique() -> None:
    t = build(
        {
            "node": {"kind": "switch", "size": 4},
            "rack": {"kind": "switch", "size": 3, "joins": "rails"},
            "spine": {"kind": "switch", "joins": "rails"},
        },
        24,
    )  # fmt: skip
    assert t.accelerators == 24
    np.testing.assert_array_equal(t.domain, np.arange(24) // 4)
    names = list(t.node_names)
    assert len(set(names)) == len(names) == 24 + 6 + 2 * 4 + 12
    assert t.level_names == ("node", "rack", "spine")


def test_a_job_that_fits_into_one_node_needs_no_outer_fabric() -> None:
    levels = {"node": {"kind": "switch", "size": 8}, "ring": {"kind": "torus", "axes": 1, "joins": "rails"}}
    assert build(levels, 5).links == 16
    assert build(levels, 9).accelerators == 16


def test_pods_of_a_torus_grow_with_the_job_up_to_their_size() -> None:
    levels = {"ici": {"kind": "torus", "size": 8}, "dcn": {"kind": "tier", "radix": 64}}
    assert build(levels, 8).built == "2x2x2 mesh of 8 gpus"
    assert build(levels, 9).accelerators == 16


def test_a_node_may_be_a_graph_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pair.json").write_text(
        '{"graph": {"forwards": true}, "nodes": [{"id": "a", "kind": "accel"}, {"id": "b", "kind": "accel"}],'
        '"links": [{"source": "a", "target": "b", "Bps": 5e9, "latency_s": 1e-6}]}'
    )
    levels = {"pair": {"kind": "graph", "file": str(tmp_path / "pair.json")}, "leaf": {"kind": "tier", "radix": 8}}
    t = build(levels, 6)
    assert t.accelerators == 6 and t.domain.tolist() == [0, 0, 1, 1, 2, 2]
    inside, outside = t.route(np.array([0, 0]), np.array([1, 2])).link[[0, 1]]
    assert t.capacity[inside] == 5e9 and t.capacity[outside] == 1e9
