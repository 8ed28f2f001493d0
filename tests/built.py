"""Topologies for tests, built from levels as a file would give them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from emulator.topology.graph import Routes, Topology
from emulator.topology.load import load

RELATIVE = 1e-12  # sums of a few hundred shares


def build(levels: dict[str, dict[str, Any]], ranks: int, **top: Any) -> Topology:
    """The topology of a file with these levels; links without a bandwidth get 1 GB/s."""
    levels = {name: ({} if level["kind"] == "graph" else {"bandwidth": 1e9}) | level for name, level in levels.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.yaml"
        path.write_text(yaml.safe_dump({"name": "made", "description": "-", "levels": levels} | top, sort_keys=False))
        return load(str(path), ranks=ranks)


@composite
def clos(draw: DrawFn) -> Topology:
    """Fat trees with and without nodes, rails, planes, a third tier; bundled or not."""
    size = draw(st.sampled_from([1, 2, 4]))
    rails = draw(st.sampled_from([r for r in (1, 2, 4) if size % r == 0]))
    levels: dict[str, dict[str, Any]] = {}
    if size > 1:
        levels["node"] = {"kind": "switch", "size": size, "latency": 1e-6}
    leaf = {"kind": "tier", "radix": 8, "rails": rails, "planes": draw(st.sampled_from([1, 2])), "latency": 2e-6}
    levels["leaf"] = leaf
    over = draw(st.sampled_from([1, 2, 3]))
    levels["spine"] = {"kind": "tier", "radix": 8, "oversubscription": over, "latency": 3e-6}
    levels["core"] = {"kind": "tier", "radix": 16, "latency": 4e-6}
    return build(levels, draw(st.integers(1, 48)), bundled=draw(st.booleans()))


@composite
def tori(draw: DrawFn, routing: str | None = None) -> Topology:
    """Tori and meshes of one to three axes."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    level = {
        "kind": "torus",
        "shape": shape,
        "wrap": draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape))),
        "double": draw(st.booleans()),
        "latency": 1e-6,
    }
    routing = routing or draw(st.sampled_from(["spread", "dimension-order"]))
    return build({"ici": level}, int(np.prod(shape)), routing=routing)


def fabrics() -> SearchStrategy[Topology]:
    """Any structured fabric."""
    meshes = st.integers(1, 9).map(lambda n: build({"mesh": {"kind": "full_mesh", "latency": 1e-6}}, n))
    return st.one_of(clos(), tori(), meshes)


def all_pairs(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of different accelerators."""
    src, dst = np.divmod(np.arange(topology.accelerators**2), topology.accelerators)
    return src[src != dst], dst[src != dst]


def assert_conserved(t: Topology) -> None:
    """Every byte that flows into a node flows out, but for the ends of its flow."""
    src, dst = all_pairs(t)
    routes = t.route(src, dst)
    flow = np.repeat(np.arange(len(src)), np.diff(routes.ptr))
    balance = np.zeros((len(src), t.nodes))
    np.add.at(balance, (flow, t.link_src[routes.link]), routes.share)
    np.add.at(balance, (flow, t.link_dst[routes.link]), -routes.share)
    expected = np.zeros_like(balance)
    expected[np.arange(len(src)), src], expected[np.arange(len(src)), dst] = 1, -1
    np.testing.assert_allclose(balance, expected, atol=RELATIVE)


def shares(routes: Routes, flow: int) -> dict[int, float]:
    """Link to share of one flow."""
    entries = slice(routes.ptr[flow], routes.ptr[flow + 1])
    return dict(zip(routes.link[entries].tolist(), routes.share[entries].tolist(), strict=True))


def table(topology: Topology, routes: Routes) -> np.ndarray:
    """Share of every flow (row) on every link (column)."""
    dense = np.zeros((len(routes.ptr) - 1, topology.links))
    np.add.at(dense, (np.repeat(np.arange(len(dense)), np.diff(routes.ptr)), routes.link), routes.share)
    return dense


def load_of(topology: Topology, src: np.ndarray, dst: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Seconds that each link needs for its part of the flows' bytes."""
    routes = topology.route(src, dst)
    carried = np.repeat(amount, np.diff(routes.ptr)) * routes.share
    return np.bincount(routes.link, carried, minlength=topology.links) / topology.capacity
