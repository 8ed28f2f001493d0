"""Figures and findings of a topology, and links as people name them."""

import json
from pathlib import Path

import numpy as np
import pytest
from built import build

from emulator.errors import InputError
from emulator.topology.explicit import node_link, to_networkx
from emulator.topology.graph import Topology
from emulator.topology.load import load
from emulator.topology.show import _bisection, _diameter, check, describe, find_links


def test_a_description_counts_what_the_model_bundles() -> None:
    d = describe(load("fattree", ranks=1024))
    assert d.nodes == {"gpu": (1024, 1024), "node": (128, 128), "leaf": (32, 32), "spine": (1, 16)}
    assert [level.name for level in d.levels] == ["NVLink", "NIC", "leaf-spine"]
    assert d.levels[2].cables == 2 * 1024
    assert d.levels[2].cable_bandwidth == pytest.approx((47e9, 47e9))
    assert (d.diameter, d.oversubscription) == (4, {"spine": 1.0})


SMALL = [
    build({"ici": {"kind": "torus", "shape": "2x4"}}, 8, routing="spread"),
    build({"ici": {"kind": "torus", "shape": "4x2", "double": True}}, 8, routing="spread"),
    build({"ici": {"kind": "torus", "shape": "8", "wrap": False}}, 8, routing="spread"),
    build({"mesh": {"kind": "full_mesh"}}, 6),
    build({"node": {"kind": "switch", "size": 8, "bandwidth": 3e9}}, 8),
    build({"leaf": {"kind": "tier", "radix": 8}}, 8),
    build(
        {
            "node": {"kind": "switch", "size": 2, "bandwidth": 4e9},
            "leaf": {"kind": "tier", "radix": 4, "rails": 2},
            "spine": {"kind": "tier", "radix": 8, "oversubscription": 1},
        },
        8,
    ),
    build(
        {
            "leaf": {"kind": "tier", "radix": 6, "planes": 2},
            "spine": {"kind": "tier", "radix": 8, "oversubscription": 2},
        },
        8,
    ),
]


@pytest.mark.parametrize("t", SMALL, ids=lambda t: t.built)
def test_closed_forms_of_bisection_and_diameter_equal_trying_everything(t: Topology) -> None:
    bisection, note = _bisection(t)
    assert "exact" in note
    assert t.facts.bisection == pytest.approx(bisection, rel=1e-9)
    assert t.facts.diameter == _diameter(t)


def test_what_cannot_be_known_is_called_an_estimate(tmp_path: Path) -> None:
    t = build({"ici": {"kind": "torus", "shape": "4x4"}}, 16, routing="spread")
    (tmp_path / "net.json").write_text(json.dumps(node_link(t)))
    d = describe(load(str(tmp_path / "net.json"), ranks=16))
    assert d.diameter == t.facts.diameter
    assert "estimate" in d.bisection_note
    assert d.bisection == pytest.approx(t.facts.bisection)


def test_links_by_name() -> None:
    t = load("torus", ranks=64)
    both, one = find_links(t, "chip0.0.0-chip0.0.1"), find_links(t, "chip0.0.0 > chip0.0.1")
    assert len(both) == 2 and len(one) == 1 and one[0] in both
    assert t.link_name(int(one[0])) == "chip0.0.0>chip0.0.1"
    assert len(find_links(load("fattree", ranks=64), "gpu9>leaf1")) == 1


def test_parallel_cables_and_odd_names_are_found(tmp_path: Path) -> None:
    link = {"source": "a-1", "target": "b>2", "bandwidth": "1 GB/s"}
    nodes = [{"id": "a-1", "kind": "accel"}, {"id": "b>2", "kind": "accel"}]
    (tmp_path / "net.json").write_text(json.dumps({"nodes": nodes, "links": [link, link], "multigraph": True}))
    t = load(str(tmp_path / "net.json"), ranks=2)
    assert find_links(t, "a-1-b>2").tolist() == [0, 1, 2, 3]
    assert find_links(t, "a-1>b>2").tolist() == [0, 2]
    assert t.route(np.array([0]), np.array([1])).share.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("text", ["gpu0-gpu1", "gpu0", "gpu0-gpu99", "", "gpu0=leaf0", "leaf0>leaf0"])
def test_a_link_that_is_not_there_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(InputError) as caught:
        find_links(load("fattree", ranks=16), text)
    assert caught.value.place == text


def test_check_has_nothing_against_a_preset_that_fits() -> None:
    assert check("fattree", ranks=64) == []
    assert [f.severity for f in check("fattree", ranks=60)] == ["note"]  # 4 accelerators without a rank


def test_check_finds_a_forgotten_unit_and_a_one_way_cable(tmp_path: Path) -> None:
    nodes = [{"id": i, "kind": "accel"} for i in range(3)]
    ends = [(0, 1), (1, 2), (2, 0)]
    links = [{"source": a, "target": b, "bandwidth": 450} for a, b in ends]
    document = {"directed": True, "nodes": nodes, "links": links, "graph": {"forwards": True, "device": "warp9"}}
    (tmp_path / "net.json").write_text(json.dumps(document))
    text = " ".join(f.text for f in check(str(tmp_path / "net.json"), ranks=3))
    assert "unit" in text and "no way back" in text and "no such device" in text


def test_check_refuses_what_load_refuses() -> None:
    with pytest.raises(InputError) as caught:
        check("nowhere", ranks=4)
    assert "fattree" in caught.value.remedy


def test_networkx_gets_the_whole_graph() -> None:
    t = load("fiber", ranks=16)
    graph = to_networkx(t)
    assert graph.number_of_nodes() == t.nodes and graph.number_of_edges() == t.links
