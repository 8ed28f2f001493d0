"""Folding is exact on every fabric and routing there is."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.topology.explicit import NodeLink, from_node_link, node_link
from emulator.topology.graph import Topology
from emulator.topology.load import load
from emulator.topology.spec import decode_quantity
from tests.built import build
from tests.jobs import replay
from tests.test_fold import MB, assert_same, ends, jobs, training_step

FLY = {"kind": "dragonfly", "hosts": 2, "routers": 4, "globals": 2, "latency": 1e-6, "global_bandwidth": 5e8}
NODE = {"kind": "switch", "size": 4, "bandwidth": 4e9, "latency": 1e-6}
TIERS = {
    "leaf": {"kind": "tier", "radix": 6, "latency": 2e-6},
    "spine": {"kind": "tier", "radix": 64, "oversubscription": 2, "latency": 1e-6},
}
RAILS = TIERS | {"leaf": TIERS["leaf"] | {"rails": 4}}
PLANES = TIERS | {"leaf": TIERS["leaf"] | {"joins": "rails"}}
FABRICS = {
    "hypercube": ({"cube": {"kind": "hypercube", "latency": 1e-6}}, {"routing": "spread"}),
    "e-cube": ({"cube": {"kind": "hypercube", "latency": 1e-6}}, {"routing": "dimension-order"}),
    "twisted torus": ({"ici": {"kind": "torus", "shape": "2x4x4", "twist": True}}, {"routing": "spread"}),
    "twisted torus, one axis after the other": (
        {"ici": {"kind": "torus", "shape": "4x8", "twist": True, "ties": "one"}}, {"routing": "dimension-order"}),
    "mesh": ({"ici": {"kind": "torus", "shape": "4x8", "wrap": False}}, {"routing": "spread"}),
    "dragonfly": ({"fly": FLY}, {"routing": "spread"}),
    "adaptive dragonfly": ({"fly": FLY | {"groups": 4}}, {"routing": "minimal-adaptive"}),
    "nodes on a dragonfly": ({"node": NODE, "fly": FLY}, {}),
    "rails with pxn": ({"node": NODE} | RAILS, {"pxn": True}),
    "planes": ({"node": NODE} | PLANES, {}),
    "rings of rings": (
        {"a": {"kind": "torus", "shape": "4"}, "b": {"kind": "torus", "axes": 1, "joins": "rails"}}, {}),
    "pods of tori": ({"ici": {"kind": "torus", "shape": "2x4"}} | TIERS, {"routing": "dimension-order"}),
    "meshes on a star": ({"mesh": {"kind": "full_mesh", "size": 4}, "star": {"kind": "switch"}}, {}),
}  # fmt: skip
HASHED = {
    "hashed": ({"node": NODE} | RAILS, {"routing": "ecmp", "flows_per_pair": 2}),
    "hashed with pxn": ({"node": NODE} | RAILS, {"routing": "ecmp", "pxn": True}),
    "hashed dragonfly": ({"fly": FLY}, {"routing": "ecmp", "flows_per_pair": 3, "seed": 5}),
}  # fmt: skip
BUILT: dict[tuple[str, int], Topology] = {}


def fabric(name: str, ranks: int) -> Topology:
    if (name, ranks) not in BUILT:
        levels, top = (FABRICS | HASHED)[name]
        BUILT[name, ranks] = build(levels, ranks, **top)
    return BUILT[name, ranks]


@pytest.mark.parametrize("name", [*FABRICS, *HASHED])
@given(trace=jobs())
@settings(max_examples=4, deadline=None)
def test_folded_equals_whole(name, trace):
    assert_same(trace, fabric(name, trace.world_size))


@pytest.mark.parametrize("name", FABRICS)
def test_folded_equals_whole_with_a_degraded_link(name):
    trace = training_step(
        {"pp": 2, "dp": 4, "tp": 4}, [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 64 * MB)], 2, 2, 1e-3
    )
    topology = fabric(name, 32)
    used = topology.route(np.array([0]), np.array([4])).link[:1]
    assert_same(trace, topology.with_capacity(used, 0.25))


@pytest.mark.parametrize("name", [*FABRICS, *HASHED])
def test_leaving_out_links_that_never_bind_changes_nothing(name):
    trace = training_step(
        {"dp": 8, "tp": 4}, [("tp", "all_to_all", 32 * MB), ("dp", "all_reduce", 64 * MB)], 1, 2, 1e-3
    )
    topology = fabric(name, 32)
    fewer, all_links = replay(trace, topology), replay(trace, topology, folding=False, drop_unsaturable=False)
    for a, b in zip(ends(fewer, 32), ends(all_links, 32), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("preset", ["h800-mpft", "tpu-v5e", "dgx-a100-superpod", "dragonfly", "roce-24k"])
def test_presets_fold_and_stay_exact(preset):
    trace = training_step(
        {"pp": 2, "dp": 4, "tp": 8}, [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 64 * MB)], 2, 2, 1e-3
    )
    found = assert_same(trace, load(preset, ranks=64))
    assert found.folding.rank_classes < 64


def test_hashing_folds_next_to_nothing():
    trace = training_step({"dp": 8, "tp": 4}, [("dp", "all_to_all", 32 * MB)], 1, 2, 1e-3)
    spread, hashed = (assert_same(trace, fabric(name, 32)) for name in ("rails with pxn", "hashed with pxn"))
    assert spread.folding.rank_classes < hashed.folding.rank_classes


@given(st.integers(0, 2**31))
@settings(max_examples=5, deadline=None)
def test_any_placement_stays_exact(seed):
    """Ranks shuffled over the accelerators: a job on a topology whose accelerators are renumbered."""
    trace = training_step({"dp": 4, "tp": 4}, [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 4 * MB)], 1, 2, 1e-3)
    topology = fabric("dragonfly", 16)
    order = np.random.default_rng(seed).permutation(16)
    assert_same(trace, renumbered(topology, order))


def renumbered(topology: Topology, order: np.ndarray) -> Topology:
    """The same fabric with rank r on accelerator ``order[r]``."""

    class Placed:
        def route(self, src, dst):
            return topology.router.route(order[src], order[dst])

    return replace(topology, router=Placed(), domain=topology.domain[order])


TURNED = np.arange(16).reshape(2, 8).T.ravel()
SYMMETRIES = {
    "torus turned round": ({"kind": "torus", "shape": "2x8"}, {"kind": "torus", "shape": "8x2"}, np.argsort(TURNED)),
    "torus mirrored": (
        {"kind": "torus", "shape": "2x8"}, {"kind": "torus", "shape": "2x8"},
        np.arange(16).reshape(2, 8)[:, ::-1].ravel()),
    "torus pushed on": (
        {"kind": "torus", "shape": "4x4"}, {"kind": "torus", "shape": "4x4"},
        np.roll(np.arange(16).reshape(4, 4), (1, 2), (0, 1)).ravel()),
    "dragonfly pushed on": (FLY, FLY, (np.arange(16) + 8) % 16),
    "hypercube flipped": ({"kind": "hypercube"}, {"kind": "hypercube"}, np.arange(16) ^ 6),
}  # fmt: skip


@pytest.mark.parametrize("case", SYMMETRIES)
@given(trace=jobs())
@settings(max_examples=4, deadline=None)
def test_the_same_fabric_under_other_numbers_gives_equal_times(case, trace):
    """Ranks moved by a symmetry of the fabric: every op ends when it did."""
    if trace.world_size != 16:
        return
    one, other, moved = SYMMETRIES[case]
    before = renumbered(build({"net": one}, 16, routing="spread"), np.arange(16))
    after = renumbered(build({"net": other}, 16, routing="spread"), moved)
    times = [replay(trace, topology, folding=False) for topology in (before, after)]
    for a, b in zip(*(ends(found, 16) for found in times), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-15)


@given(trace=jobs())
@settings(max_examples=4, deadline=None)
def test_a_graph_folds_exactly_though_nothing_is_known_of_it(trace):
    """The same network, but read as a graph: what its builder knew (oversubscription) is not there."""
    built = build({"node": NODE} | TIERS, trace.world_size, bundled=False)
    graph = from_node_link(msgspec.convert(node_link(built), NodeLink, dec_hook=decode_quantity))
    folded = assert_same(trace, graph)
    assert folded.step_seconds == pytest.approx(replay(trace, built).step_seconds, rel=1e-9)
