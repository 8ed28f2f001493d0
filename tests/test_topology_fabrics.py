"""What the presets build, in the figures that the field publishes."""

import subprocess
import sys

import numpy as np
import pytest
from built import build, tori
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.topology.devices import device_names
from emulator.topology.graph import Topology
from emulator.topology.load import load, presets
from emulator.topology.torus import cubic_shape


def test_every_preset_says_what_it_is_and_where_its_figures_come_from() -> None:
    assert [name for name, _ in presets()] == ["fattree", "fiber", "torus"]
    for name, line in presets():
        t = load(name, ranks=64)
        assert line and t.sources and t.built and t.device in device_names()
        assert t.accelerators == 64


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
