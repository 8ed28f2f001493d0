"""Hashed, adaptive and rail-hopping routes: nothing is lost, hashes are stable and even, the right rail is taken."""

import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from built import RELATIVE, all_pairs, assert_conserved, build, load_of, table
from fabrics_more import dragonflies, nested, twisted
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.topology import clos
from emulator.topology.clos import ClosDesign
from emulator.topology.explicit import GraphRouting, NodeLink, from_node_link, node_link
from emulator.topology.fabric import clos_design
from emulator.topology.graph import Topology, merge
from emulator.topology.load import decode, load
from emulator.topology.spec import decode_quantity

CLOS: dict[str, dict[str, Any]] = {
    "node": {"kind": "switch", "size": 4, "latency": 1e-6},
    "leaf": {"kind": "tier", "radix": 8, "rails": 2, "parallel": 1, "latency": 2e-6},
    "spine": {"kind": "tier", "radix": 8, "latency": 3e-6},
    "core": {"kind": "tier", "radix": 16, "latency": 4e-6},
}


def hashed(ranks: int, **top: Any) -> Topology:
    return build(CLOS, ranks, routing="ecmp", **top)


def conserved(t: Topology) -> None:
    assert_conserved(t)
    src, dst = all_pairs(t)
    routes = t.route(src, dst)
    flow = np.repeat(np.arange(len(src)), np.diff(routes.ptr))
    carried = np.zeros((len(src), t.links))
    np.add.at(carried, (flow, routes.link), routes.share * t.latency[routes.link])
    # a message waits for the latencies of a path; the slowest, so at least their average
    assert (carried.sum(axis=1) <= routes.latency * (1 + 1e-9)).all()


@given(st.one_of(dragonflies(), twisted(), nested()))
@settings(max_examples=40, deadline=None)
def test_what_flows_in_flows_out(t: Topology) -> None:
    conserved(t)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(-5, 5), st.booleans())
@settings(max_examples=20, deadline=None)
def test_hashed_flows_take_shortest_paths_whole(ranks: int, flows: int, seed: int, pxn: bool) -> None:
    t = hashed(ranks, flows_per_pair=flows, seed=seed, pxn=pxn and ranks > 4)
    conserved(t)
    src, dst = all_pairs(t)
    spread = build(CLOS, ranks, bundled=False, pxn=pxn and ranks > 4).route(src, dst)
    routes = t.route(src, dst)
    np.testing.assert_allclose(routes.latency, spread.latency, rtol=RELATIVE)
    parts = routes.share * flows
    np.testing.assert_allclose(parts, np.round(parts), atol=1e-9)  # whole flows
    assert (t.cables[t.link_level > 0] == 1).all()


def test_hashes_are_the_same_in_every_process_and_change_with_the_seed() -> None:
    code = (
        "import numpy as np; from emulator.topology.load import load;"
        "t = load('fattree', ranks=512, overrides={'routing': 'ecmp'});"
        "r = t.route(np.arange(256), np.arange(256) + 255); print(r.link.sum(), r.link[:20].tolist())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(runs) == 1
    src, dst = np.arange(64), np.arange(64) + 256  # other leaves
    links = [load("fattree", ranks=512, overrides={"routing": "ecmp", "seed": s}).route(src, dst).link for s in "012"]
    assert not np.array_equal(links[0], links[1]) and not np.array_equal(links[1], links[2])


def test_more_hashed_flows_come_closer_to_spreading() -> None:
    slowest = []
    for flows in (1, 8, 64):
        t = hashed(32, flows_per_pair=flows)
        src, dst = np.arange(32), (np.arange(32) + 8) % 32
        slowest.append(load_of(t, src, dst, np.ones(32)).max())
    spread = build(CLOS, 32, bundled=False)
    ideal = load_of(spread, src, dst, np.ones(32)).max()
    assert slowest[0] > slowest[1] > slowest[2] > ideal
    assert slowest[2] < 1.5 * ideal


def test_hashes_spread_evenly_over_the_switches() -> None:
    t = load("fattree", ranks=512, overrides={"routing": "ecmp"})
    src, dst = all_pairs(t)
    some = np.random.default_rng(0).permutation(len(src))[:20000]
    routes = t.route(src[some], dst[some])
    up = (t.link_dst[routes.link] >= t.accelerators) & (t.link_level[routes.link] == t.level_names.index("leaf-spine"))
    spines = np.bincount(t.link_dst[routes.link][up], routes.share[up])
    spines = spines[[name.startswith("spine") for name in t.node_names]]
    assert len(spines) == 8 and spines.std() / spines.mean() < 0.02  # two thousand flows of eight parts on each


@given(dragonflies(rule="minimal-adaptive"))
@settings(max_examples=20, deadline=None)
def test_adaptive_traffic_uses_all_cables_between_two_groups_alike(t: Topology) -> None:
    groups, a = t.router.local.shape[:2]
    src, dst = all_pairs(t)
    shares = table(t, t.route(src, dst))
    per_group = t.router.hosts * a
    far = t.link_level == (t.level_names.index("fly global") if groups > 1 else -1)
    home = (t.link_src - t.accelerators) // a, (t.link_dst - t.accelerators) // a
    for flow in range(len(src)):
        one, other = src[flow] // per_group, dst[flow] // per_group
        cables = np.flatnonzero(far & (home[0] == one) & (home[1] == other))
        if one != other:
            np.testing.assert_allclose(shares[flow, cables] / t.cables[cables], 1 / t.cables[cables].sum(), rtol=1e-9)
        assert shares[flow, far].sum() == pytest.approx(float(one != other))


def test_adaptive_routing_is_faster_where_a_router_has_a_cable_of_its_own() -> None:
    level = {"kind": "dragonfly", "hosts": 2, "routers": 4, "globals": 2}
    loads = {}
    for rule in ("spread", "minimal-adaptive"):
        t = build({"fly": level | {"groups": 3}}, 24, routing=rule)
        src, dst = np.array([0, 1]), np.array([8, 9])  # two neighbours to another group
        loads[rule] = load_of(t, src, dst, np.ones(2)).max()
    assert loads["minimal-adaptive"] <= loads["spread"]


def test_pxn_changes_rails_inside_the_node_and_leaves_the_spine_alone() -> None:
    plain, hop = (load("fattree", ranks=64, overrides={"pxn": flag}) for flag in ("false", "true"))
    assert hop.routing == "spread, PXN"
    src, dst = np.array([0, 0, 0]), np.array([1, 8, 9])
    names = [[plain.level_names[i] for i in plain.link_level[t.route(src, dst).link]] for t in (plain, hop)]
    assert names[0] == ["NVLink"] * 2 + ["NIC"] * 2 + ["NIC", "leaf-spine", "leaf-spine", "NIC"]
    assert names[1] == ["NVLink"] * 2 + ["NIC"] * 2 + ["NVLink", "NVLink", "NIC", "NIC"]
    links = [hop.link_name(int(i)) for i in hop.route(src[2:], dst[2:]).link]
    assert links == ["gpu0>node0", "node0>gpu1", "gpu1>leaf1", "leaf1>gpu9"]
    assert hop.route(src, dst).latency[2] == pytest.approx(3.33e-6 + 2.8e-6)


def test_pxn_equals_separate_planes_with_a_hop_inside() -> None:
    levels = {
        "node": {"kind": "switch", "size": 4, "bandwidth": 4e9, "latency": 1e-6},
        "leaf": {"kind": "tier", "radix": 64, "rails": 4, "latency": 2e-6},
        "spine": {"kind": "tier", "radix": 64},
    }
    pxn = build(levels, 32, pxn=True)
    del levels["leaf"]["rails"]
    planes = build({"node": levels["node"], "leaf": levels["leaf"] | {"joins": "rails"}}, 32)
    src, dst = all_pairs(pxn)
    amount = np.random.default_rng(3).uniform(size=len(src))
    loads = [np.sort(load_of(t, src, dst, amount)[t.link_level < 2]) for t in (pxn, planes)]
    np.testing.assert_allclose(*loads, rtol=1e-9)
    np.testing.assert_allclose(pxn.route(src, dst).latency, planes.route(src, dst).latency, rtol=1e-9)


@given(st.integers(2, 20), st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_a_graph_can_be_hashed_too(ranks: int, flows: int) -> None:
    t = build(CLOS, ranks, bundled=False)
    document = msgspec.convert(node_link(t), NodeLink, dec_hook=decode_quantity)
    graph = from_node_link(document, routing=GraphRouting("ecmp", flows))
    conserved(graph)
    src, dst = all_pairs(graph)
    routes = graph.route(src, dst)
    np.testing.assert_allclose(routes.share * flows, np.round(routes.share * flows), atol=1e-9)
    np.testing.assert_allclose(routes.latency, t.route(src, dst).latency, rtol=RELATIVE)


def test_a_graph_with_servers_keeps_their_traffic_inside() -> None:
    """Written out and read back, a Clos network routes as before, inside nodes too."""
    t = build(CLOS | {"leaf": CLOS["leaf"] | {"rails": 1, "radix": 16}}, 16)
    back = from_node_link(msgspec.convert(node_link(t), NodeLink, dec_hook=decode_quantity))
    src, dst = all_pairs(t)
    np.testing.assert_allclose(table(t, t.route(src, dst)), table(back, back.route(src, dst)), atol=RELATIVE)


@pytest.mark.parametrize("routing", ["spread", "dimension-order"])
def test_turning_and_mirroring_a_torus_change_no_time(routing: str) -> None:
    amount = np.random.default_rng(1).uniform(size=16 * 15)
    flat, tall = (build({"ici": {"kind": "torus", "shape": s}}, 16, routing=routing) for s in ("2x8", "8x2"))
    src, dst = all_pairs(flat)
    mirrored = np.arange(16).reshape(2, 8)[:, ::-1].ravel()
    same = np.sort(load_of(flat, src, dst, amount))
    np.testing.assert_allclose(np.sort(load_of(flat, mirrored[src], mirrored[dst], amount)), same, rtol=1e-9)
    if routing == "spread":  # dimension order takes the first axis first, and turning changes which that is
        place = np.argsort(np.arange(16).reshape(2, 8).T.ravel())
        np.testing.assert_allclose(np.sort(load_of(tall, place[src], place[dst], amount)), same, rtol=1e-9)


@pytest.mark.parametrize("level", [
    {"kind": "dragonfly", "hosts": 2, "routers": 3, "globals": 2, "groups": 4},
    {"kind": "torus", "shape": "3x3x6", "twist": True},
    {"kind": "hypercube", "size": 16},
])  # fmt: skip
def test_renumbering_by_a_symmetry_changes_no_time(level: dict[str, Any]) -> None:
    t = build({"net": level}, 2, routing="spread")
    n = t.accelerators
    moved = {
        "dragonfly": (np.arange(n) + 6) % n,  # all groups one on
        "torus": t.router.lattice.number(np.stack(np.unravel_index(np.arange(n), (3, 3, 6)), 1) + np.array([1, 2, 1]))
        if level["kind"] == "torus" else None,
        "hypercube": np.arange(n) ^ 5,
    }[level["kind"]]  # fmt: skip
    src, dst = all_pairs(t)
    amount = np.random.default_rng(2).uniform(size=len(src))
    before, after = load_of(t, src, dst, amount), load_of(t, moved[src], moved[dst], amount)
    np.testing.assert_allclose(np.sort(before), np.sort(after), rtol=1e-9)


def test_settings_that_change_nothing_are_said() -> None:
    def idle(spec: str, ranks: int, **settings: str) -> str:
        overrides = {key.replace("__", "."): value for key, value in settings.items()}
        return " ".join(f for f in load(spec, ranks=ranks, overrides=overrides).findings if "nothing" in f)

    assert idle("fattree", 64, core__oversubscription="7") == (
        "core.oversubscription changed nothing: 64 accelerators need no core"
    )
    assert "seed=3 changed nothing" in idle("fattree", 64, seed="3")
    assert "spine.oversubscription=1 changed nothing" in idle("fattree", 512, spine__oversubscription="1")
    assert not idle("fattree", 512, spine__oversubscription="2", leaf__latency="2 us")
    assert not idle("fattree", 512, routing="ecmp", seed="3", flows_per_pair="4")
    assert "ici.ties=one changed nothing" in idle("torus", 27, ici__ties="one")
    assert not idle("torus", 64, ici__ties="one")


sizes = st.sampled_from([4, 8, 16, 64])
tiers = st.fixed_dictionaries(
    {"radix": sizes, "oversubscription": st.sampled_from([1, 2])}, optional={"parallel": st.sampled_from([1, 2])}
)


@given(st.lists(tiers, min_size=2, max_size=2), st.booleans(), st.sampled_from([1, 2, 4]),
       st.sampled_from(["spread", "ecmp"]), st.booleans(), st.sampled_from([4, 16, 40]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_designs_tell_what_the_arrays_tell(
    upper: list[dict[str, Any]], bundled: bool, rails: int, routing: str, pxn: bool, ranks: int
) -> None:
    """Whether a setting changed anything may be read off the numbers: equal designs, and only they, build equally.

    (A hash may change and yet leave each route what it was, where few are left to choose.)
    """

    def made(**changes: Any) -> tuple[ClosDesign, dict[str, Any]] | None:
        values = {"bundled": bundled, "rails": rails, "routing": routing, "pxn": pxn, "seed": 0} | changes
        levels = {
            "node": {"kind": "switch", "size": 4},
            "leaf": {"kind": "tier", "radix": 16, "rails": values.pop("rails")},
            "spine": {"kind": "tier"} | upper[0],
            "core": {"kind": "tier"} | upper[1],
        }
        levels = {name: level | {"bandwidth": "1 GB/s"} for name, level in levels.items()}
        file, decoded = decode({"name": "t", "description": "-", "levels": levels} | values, "t")
        try:
            design = clos_design(file, decoded, ranks)
        except InputError:
            return None
        assert design is not None
        return design, clos.build(design)

    first = made()
    for changes in ({"seed": 1}, {"bundled": not bundled}, {"rails": 4}, {"pxn": False}, {"routing": "spread"}):
        second = made(**changes)
        if first is not None and second is not None:
            alike = same_network(first[1], second[1])
            assert alike == (first[0] == second[0]) or (alike and routing == "ecmp"), changes


@given(st.lists(tiers, min_size=2, max_size=2), st.booleans(), st.sampled_from([4, 16, 40]), st.sampled_from([1, 2, 8]))
@settings(max_examples=40, deadline=None)
def test_designs_tell_whether_a_bandwidth_moves_cables(
    upper: list[dict[str, Any]], bundled: bool, ranks: int, faster: int
) -> None:
    def made(spine: int) -> ClosDesign | None:
        levels = {"leaf": {"kind": "tier", "radix": 16, "bandwidth": "1 GB/s"},
                  "spine": {"kind": "tier", "bandwidth": f"{spine} GB/s"} | upper[0],
                  "core": {"kind": "tier", "bandwidth": "1 GB/s"} | upper[1]}  # fmt: skip
        document = {"name": "t", "description": "-", "bundled": bundled, "levels": levels}
        try:
            return clos_design(*decode(document, "t"), ranks)
        except InputError:
            return None

    plain, changed = made(1), made(faster)
    if plain is not None and changed is not None:
        ends = [(fields["link_src"], fields["link_dst"]) for fields in (clos.build(plain), clos.build(changed))]
        same = all(np.array_equal(a, b) for a, b in zip(*ends, strict=True))
        assert (plain.cabling() == changed.cabling()) == same


def same_network(a: dict[str, Any], b: dict[str, Any]) -> bool:
    columns = ("link_src", "link_dst", "capacity", "latency", "link_level", "cables")
    if any(not np.array_equal(a[column], b[column]) for column in columns):
        return False
    src, dst = (ends.ravel() for ends in np.indices((a["accelerators"],) * 2))
    src, dst = src[src != dst], dst[src != dst]
    routes = [merge(fields["router"].route(src, dst), len(a["link_src"])) for fields in (a, b)]
    return all(
        np.array_equal(getattr(routes[0], field), getattr(routes[1], field)) for field in ("ptr", "link", "share")
    )
