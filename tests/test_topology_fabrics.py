"""What the presets build, in the figures that the field publishes."""

import subprocess
import sys

import numpy as np
import pytest
from built import build, tori
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.topology.devices import device_names
from emulator.topology.graph import Topology
from emulator.topology.load import load, presets
from emulator.topology.torus import cubic_shape


def test_every_preset_says_what_it_is_and_where_its_figures_come_from() -> None:
    names = [name for name, _ in presets()]
    assert {"fattree", "torus", "fiber"} < set(names)
    network_only = {"dragonfly", "slingshot", "tpu-8t-virgo"}
    for name, line in presets():
        t = load(name, ranks=8)
        assert line and t.name == name and t.sources and t.built and t.accelerators in (8, 72)
        assert (t.device is None) == (name in network_only)
        assert t.device is None or t.device in device_names()


# docs.nvidia.com/dgx-superpod, reference architecture, table of nodes, leaf, spine and core switches (radix 64)
@pytest.mark.parametrize(
    ("nodes", "leaf", "spine", "core"),
    [
        (64, 16, 8, 0),
        (128, 32, 16, 0),
        (256, 64, 32, 0),
        (512, 128, 128, 64),
        (1024, 256, 256, 128),
        (2048, 512, 512, 256),
    ],
)
def test_fattree_needs_the_switches_of_a_superpod(nodes: int, leaf: int, spine: int, core: int) -> None:
    t = load("fattree", ranks=8 * nodes, overrides={"bundled": "false"})
    switches = {name: int(np.prod(shape)) for name, shape in t.node_names.groups[1:]}
    assert switches == {"node": nodes, "leaf": leaf, "spine": spine} | ({"core": core} if core else {})
    bundled = load("fattree", ranks=8 * nodes)
    assert bundled.switches.sum() == nodes + leaf + spine + core
    for level in ("NIC", "leaf-spine", "spine-core")[: 2 + (core > 0)]:  # full bisection: as many cables at every level
        at = bundled.link_level == bundled.level_names.index(level)
        assert bundled.cables[at].sum() == 2 * 8 * nodes


def test_fattree_latencies_are_those_measured_end_to_end() -> None:
    t = load("fattree", ranks=1024)  # 4 leaves per rail, 32 nodes each
    first = np.zeros(4, dtype=np.int64)
    latency = t.route(first, np.array([1, 8, 9, 8 * 32])).latency
    # NVLink; same leaf; other rail; same rail, other leaf (leaf-spine-leaf)
    np.testing.assert_allclose(latency, [3.33e-6, 2.8e-6, 3.7e-6, 3.7e-6], rtol=1e-12)


def test_fattree_links_have_the_published_rates_times_the_measured_efficiency() -> None:
    t = load("fattree", ranks=64)
    nvlink, nic = (t.capacity[t.link_level == t.level_names.index(level)] for level in ("NVLink", "NIC"))
    np.testing.assert_allclose(nvlink, 450e9 * 0.82, rtol=1e-12)
    np.testing.assert_allclose(nic, 50e9 * 0.94, rtol=1e-12)


@pytest.mark.parametrize("ratio", [1, 2, 4, 7])
def test_oversubscription_is_what_goes_into_a_leaf_over_what_comes_out(ratio: int) -> None:
    t = load("fattree", ranks=8 * 56, overrides={"spine.oversubscription": str(ratio)})
    leaf = next(i for i, name in enumerate(t.node_names) if name.startswith("leaf"))
    into = t.capacity[(t.link_dst == leaf) & (t.link_src < t.accelerators)].sum()
    out = t.capacity[(t.link_src == leaf) & (t.link_dst >= t.accelerators)].sum()
    assert into / out == pytest.approx(ratio, rel=1e-12)
    assert t.facts.oversubscription["spine"] == pytest.approx(ratio, rel=1e-12)


def test_a_ratio_that_needs_part_of_a_cable_is_built_whole_and_said() -> None:
    t = load("fattree", ranks=24, overrides={"spine.oversubscription": "2"})
    assert t.facts.oversubscription["spine"] == 1.5
    assert "1.5:1" in t.built
    assert t.findings


def test_rails_keep_equal_places_of_all_nodes_on_one_leaf() -> None:
    t = load("fattree", ranks=64)
    nic = t.link_level == t.level_names.index("NIC")
    leaf_of = {int(a): int(b) for a, b in zip(t.link_src[nic], t.link_dst[nic], strict=True) if a < 64}
    assert len(set(leaf_of.values())) == 8
    assert all(leaf_of[a] == leaf_of[a % 8] for a in range(64))
    plain = load("fattree", ranks=64, overrides={"leaf.rails": "1"})
    assert "1 leaf" in plain.built
    np.testing.assert_array_equal(t.domain, np.arange(64) // 8)


def test_fiber_is_a_cloudmatrix_384() -> None:
    t = load("fiber", ranks=384, overrides={"bundled": "false"})
    assert dict(t.node_names.groups) == {"npu": (384,), "l1": (48, 7), "l2": (7, 16)}
    assert t.route(np.array([0]), np.array([383])).latency == pytest.approx(1e-6, rel=1e-12)
    out_of_one = t.capacity[t.link_src == 0].sum()
    assert out_of_one == pytest.approx(392e9, rel=1e-12)
    assert t.facts.bisection == pytest.approx(192 * 392e9, rel=1e-12)  # non-blocking


def test_torus_of_a_whole_pod_has_the_published_bisection() -> None:
    t = load("torus", ranks=4096)
    assert t.router.shape == (16, 16, 16)
    assert t.facts.bisection == pytest.approx(24e12, rel=0.05)  # published: 24 TB/s, rounded; 50 GB/s links give 25.6
    assert t.facts.diameter == 24


def test_torus_wraps_only_when_made_of_whole_cubes() -> None:
    assert all(load("torus", ranks=64).router.closed)
    small = load("torus", ranks=32)
    assert not any(small.router.closed)
    assert "mesh" in small.built and small.findings
    loose = load("torus", ranks=32, overrides={"ici.cube": "1"})
    assert loose.router.closed == (False, True, True)  # an axis of 2 has one cable
    two = load("torus", ranks=32, overrides={"ici.cube": "1", "ici.double": "true"})
    assert two.router.closed == (True, True, True)
    assert two.links == loose.links + 32


@given(st.integers(1, 2000), st.integers(1, 3))
def test_the_most_cubic_shape_has_the_least_sum_of_lengths(count: int, axes: int) -> None:
    shape = cubic_shape(count, axes)
    assert np.prod(shape) == count and len(shape) == axes
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    if axes == 2:
        assert sum(shape) == min(d + count // d for d in divisors)
    if axes == 3:
        pairs = ((a, b) for a in divisors for b in divisors if count // a % b == 0)
        assert sum(shape) == min(a + b + count // a // b for a, b in pairs)


@settings(max_examples=30, deadline=None)
@given(tori())
def test_a_torus_looks_the_same_from_every_chip_if_all_axes_close(t: Topology) -> None:
    if all(closed or length == 1 for closed, length in zip(t.router.closed, t.router.shape, strict=True)):
        degrees = np.bincount(t.link_src, minlength=t.accelerators)
        assert len(set(degrees.tolist())) == 1


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    base = load("torus", ranks=64)
    fast = load("torus", ranks=64, overrides={"ici.bandwidth": "90 GB/s", "ici.latency": "2 us"})
    np.testing.assert_allclose(fast.capacity, 2 * base.capacity)
    np.testing.assert_allclose(fast.latency, 2 * base.latency)
    np.testing.assert_array_equal(fast.link_src, base.link_src)
    wide = load("torus", ranks=8, overrides={"ici.shape": "2,2,4"})
    assert wide.accelerators == 16
    assert load("fattree", ranks=8, overrides={"accelerators": "64"}).accelerators == 64


def test_the_job_of_one_rank_has_a_place_everywhere() -> None:
    for name, _ in presets():
        t = load(name, ranks=1)
        routes = t.route(np.array([0]), np.array([0]))
        assert routes.latency.tolist() == [0.0]


def test_a_degraded_link_keeps_its_routes() -> None:
    t = build({"mesh": {"kind": "full_mesh"}}, 4)
    worse = t.with_capacity(np.array([3]), 0.5)
    assert worse.capacity[3] == 0.5e9 and t.capacity[3] == 1e9
    assert worse.router is t.router


def test_presets_need_no_networkx() -> None:
    code = (
        "import sys; from emulator.topology.load import load, presets; presets();"
        "[load(name, ranks=64) for name in ('fattree', 'torus', 'fiber')];"
        "print(sorted({'networkx', 'torch', 'matplotlib', 'rich', 'simpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def capacities(t: Topology, level: str) -> set[float]:
    return set(np.round(t.capacity[t.link_level == t.level_names.index(level)] / 1e6).tolist())  # MB/s


# docs.nvidia.com and the other sources named in the files: rate out of an accelerator and between nodes, bytes/s
@pytest.mark.parametrize(
    ("name", "ranks", "inside", "outside"),
    [
        ("dgx-a100-superpod", 1120, 300e9 * 0.78, 25e9 * 0.94),
        ("dgx-h100-superpod", 2048, 450e9 * 0.82, 50e9 * 0.94),
        ("dgx-b200-superpod", 512, 900e9 * 0.76, 50e9 * 0.94),
        ("gb200-superpod", 576, 900e9 * 0.76, 50e9 * 0.94),
        ("h800-mpft", 2048, 200e9 * 0.8, 50e9 * 0.94),
        ("roce-24k", 3072, 450e9 * 0.82, 50e9 * 0.94),
    ],
)
def test_gpus_reach_the_published_rates(name: str, ranks: int, inside: float, outside: float) -> None:
    t = load(name, ranks=ranks)
    out = np.bincount(t.link_src, t.capacity, t.nodes)[: t.accelerators]
    np.testing.assert_allclose(out, inside + outside, rtol=1e-9)
    size = int((t.domain == 0).sum())
    apart = t.route(np.array([0, 0]), np.array([1, ranks - size]))  # same place of the last node
    assert t.capacity[apart.link[0]] == pytest.approx(inside)
    assert t.capacity[apart.link[apart.ptr[1]]] == pytest.approx(outside)


def test_roce_24k_has_pods_of_3072_and_seven_to_one_between_them() -> None:
    t = load("roce-24k", ranks=24576)
    assert "1,536 rack switches" in t.built and "8 pods" in t.built
    assert t.facts.oversubscription["cluster"] == 1.0
    assert t.facts.oversubscription["aggregation"] == pytest.approx(7, rel=0.01)
    assert "pods" in load("roce-24k", ranks=3080).built and "pods" not in load("roce-24k", ranks=3072).built
    assert t.facts.bisection == pytest.approx(24576 / 2 * 47e9 / 7, rel=0.01)


def test_h800_planes_need_the_published_switches() -> None:
    # arXiv 2505.09343, table 3: 16,384 endpoints with 768 switches, 8 planes of 64 leaves and 32 spines
    t = load("h800-mpft", ranks=16384, overrides={"bundled": "false"})
    kinds = {prefix: int(np.prod(shape)) for prefix, shape in t.node_names.groups[1:]}
    assert kinds == {"node": 2048, "leaf": 8 * 64, "spine": 8 * 32}


def test_gb200_racks_are_72_on_one_hop_and_eight_make_576() -> None:
    rack = load("gb200-nvl72", ranks=72)
    assert rack.facts.diameter == 2 and rack.power == 145e3
    assert rack.capacity.sum() / 2 / 0.76 == pytest.approx(64.8e12)  # published: 130 TB/s, both directions
    unit = load("gb200-superpod", ranks=576)
    assert unit.power == pytest.approx(8 * 145e3)
    assert len(set(unit.domain.tolist())) == 8


@pytest.mark.parametrize(
    ("name", "ranks", "bisection"),
    [("tpu-v4", 4096, 24e12), ("tpu-v6e", 256, 3.2e12), ("tpu-v5e", 256, 16 * 2 * 45e9), ("ironwood", 9216, 76.8e12)],
)
def test_tpu_pods_have_the_published_bisection(name: str, ranks: int, bisection: float) -> None:
    assert load(name, ranks=ranks).facts.bisection == pytest.approx(bisection, rel=0.05)  # v4: 24 published, rounded


def test_v5e_wraps_full_axes_only() -> None:
    assert load("tpu-v5e", ranks=256).router.closed == (True, True)
    assert load("tpu-v5e", ranks=128).router.closed == (False, True)
    assert load("tpu-v5e", ranks=64).router.closed == (False, False)


def test_slices_are_made_of_whole_cubes_where_they_can() -> None:
    shapes = {n: load("tpu-v4", ranks=n).router.shape for n in (64, 128, 192, 512, 1024)}
    assert shapes == {64: (4, 4, 4), 128: (4, 4, 8), 192: (4, 4, 12), 512: (8, 8, 8), 1024: (8, 8, 16)}
    assert all(all(load("tpu-v4", ranks=n).router.closed) for n in shapes)


def test_virgo_joins_pods_at_full_rate_and_no_pod_needs_it() -> None:
    assert "virgo" not in load("tpu-8t-virgo", ranks=4096).built
    t = load("tpu-8t-virgo", ranks=19200)
    assert t.device is None and t.domain.max() == 1
    assert t.router.inner.shape == (20, 20, 24)
    # 47 Pbit/s over 134,400 chips
    assert capacities(t, "Virgo") == {43700.0}
    assert pytest.approx(47e15, rel=0.01) == 134400 * 43.7e9 * 8
    assert t.facts.oversubscription == {"virgo2": 1.0}


def test_dragonflies_have_the_published_counts() -> None:
    t = load("slingshot", ranks=37888)
    assert len(t.switches) == 74 * 32
    far = t.link_level == t.level_names.index("Slingshot global")
    assert t.cables[far].sum() == 74 * 73 * 4
    assert t.facts.diameter == 5  # three between switches and two to the ends
    balanced = load("dragonfly", ranks=16 * 32 * 4)
    assert len(balanced.switches) == 128
    with pytest.raises(InputError, match="261,632"):
        load("dragonfly", ranks=261633)


def test_a_preset_may_build_on_another() -> None:
    short, long = load("fattree", ranks=64), load("dgx-h100-superpod", ranks=64)
    np.testing.assert_array_equal(short.capacity, long.capacity)
    assert short.name == "fattree" and short.sources == long.sources and short.power == long.power
