"""Faulty topologies: one line that names file, place and reason."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.errors import InputError
from emulator.topology.load import load

NODE = {"kind": "switch", "size": 4, "bandwidth": "450 GB/s"}
LEAF = {"kind": "tier", "radix": 8, "bandwidth": "400 Gbit/s"}
TORUS = {"kind": "torus", "bandwidth": "45 GB/s"}
FLY = {"kind": "dragonfly", "bandwidth": 1, "hosts": 1, "routers": 2, "globals": 1}
A, B = {"id": "a", "kind": "accel"}, {"id": "b", "kind": "accel"}


def levels(**named: dict[str, Any]) -> str:
    return yaml.safe_dump({"name": "x", "description": "x", "levels": named}, sort_keys=False)


def graph(nodes: list[dict[str, Any]], links: list[dict[str, Any]], **more: Any) -> str:
    return json.dumps({"nodes": nodes, "links": links, **more})


YAML_FAULTS = {
    "empty": ("", "is empty"),
    "not a mapping": ("- 1", "mapping"),
    "cut": ("name: [", "did not find"),
    "a key twice": ("name: x\nlevels:\n  node: {size: 4}\n  node: {size: 8}", "line 4: 'node' is given twice"),
    "tab": ("name: x\nlevels:\n\tnode: {}", "cannot start any token"),
    "no levels": ("name: x\ndescription: x\n", "missing required field `levels`"),
    "no level": ("name: x\ndescription: x\nlevels: {}", "no level"),
    "unknown key on top": ("name: x\ndescription: x\nlevels: {}\ncolour: red", "unknown key `colour`"),
    "level is a number": ("name: x\ndescription: x\nlevels: {node: 4}", "Expected `object`"),
    "unknown kind": (levels(node={"kind": "ring"}), "kind 'ring' is unknown; known: switch, tier"),
    "no kind": (levels(node={"size": 4}), "kind is missing"),
    "unknown key": (levels(node=NODE | {"speed": 1}), "levels.node: unknown key `speed`"),
    "no bandwidth": (levels(node={"kind": "switch", "size": 4}), "levels.node: missing required field `bandwidth`"),
    "bandwidth 0": (levels(node=NODE | {"bandwidth": 0}), "levels.node.bandwidth: bandwidth must be above zero"),
    "bandwidth negative": (levels(node=NODE | {"bandwidth": "-1 GB/s"}), "above zero"),
    "bandwidth in bits or bytes": (levels(node=NODE | {"bandwidth": "400G"}), "beyond doubt"),
    "bandwidth both ways": (levels(node=NODE | {"bandwidth": "900 GB/s bidirectional"}), "per direction"),
    "bandwidth is a list": (levels(node=NODE | {"bandwidth": [1]}), "levels.node.bandwidth"),
    "latency negative": (levels(node=NODE | {"latency": "-1 us"}), "must not be negative"),
    "latency in metres": (levels(node=NODE | {"latency": "5 m"}), "beyond doubt"),
    "efficiency above 1": (levels(node=NODE | {"efficiency": 1.2}), "levels.node.efficiency"),
    "size 0": (levels(node=NODE | {"size": 0}), "levels.node.size"),
    "too small": (levels(node=NODE), "holds 4 accelerators, the job needs 8"),
    "rails without a spine": (levels(node=NODE, leaf=LEAF | {"rails": 4}), "disconnected"),
    "rails that do not divide": (levels(node=NODE, leaf=LEAF | {"rails": 3}), "do not divide"),
    "switch without ports": (levels(node=NODE, leaf=LEAF | {"radix": 2}), "ports down"),
    "torus too small": (levels(ici=TORUS | {"shape": "2x2"}), "holds 4 accelerators, the job needs 8"),
    "kind is a list": (levels(node={"kind": ["switch"]}), "is unknown"),
    "level is nothing": ("name: x\ndescription: x\nlevels: {node: null}", "Expected `object`, got `null`"),
    "torus beyond memory": (levels(ici=TORUS | {"shape": "99999x99999x999"}), "too many to build"),
    "mesh beyond memory": (levels(all={"kind": "full_mesh", "bandwidth": 1, "size": 99999}), "too many to build"),
    "dragonfly beyond memory": (levels(d=FLY | {"routers": 99999}), "too many to build"),
    "bandwidth without end": (levels(node=NODE | {"bandwidth": float("inf")}), "inf is not a finite number"),
    "bandwidth of nothing": (levels(node=NODE | {"bandwidth": 1e-308}), "levels.node.bandwidth: bandwidth is beyond"),
    "bandwidth beyond any": (levels(node=NODE | {"bandwidth": 1e308}), "bandwidth is beyond any machine"),
    "latency beyond any": (levels(node=NODE | {"latency": 2**63}), "levels.node.latency: latency is beyond any"),
    "oversubscription without end": (levels(leaf=LEAF | {"oversubscription": float("inf")}), "levels.leaf.oversubs"),
    "efficiency of nothing": (levels(node=NODE | {"efficiency": 1e-300}), "levels.node.efficiency"),
    "axes beyond any": (levels(ici=TORUS | {"axes": 2**31 - 1}), "levels.ici.axes: Expected `int` <= 16"),
    "count beyond any": (levels(leaf=LEAF | {"planes": 2**63}), "levels.leaf.planes"),
    "latency that is no number": (levels(node=NODE | {"latency": float("nan")}), "nan is not a finite number"),
    "torus that cannot be twisted": (levels(ici=TORUS | {"shape": "4x4x4", "twist": True}), "4x4x4 cannot be twisted"),
    "twisted mesh": (levels(ici=TORUS | {"shape": "2x4", "twist": True, "wrap": False}), "closes all its axes"),
    "hypercube of no power of two": (
        levels(c={"kind": "hypercube", "bandwidth": 1, "size": 12}),
        "12 is not a power of",
    ),
    "hypercube too small": (
        levels(c={"kind": "hypercube", "bandwidth": 1, "size": 4}),
        "4 is too few, the job needs 8",
    ),
    "dragonfly without parameters": (levels(d={"kind": "dragonfly", "bandwidth": 1}), "missing required field `hosts`"),
    "dragonfly too small": (levels(d=FLY | {"groups": 2}), "holds 4 accelerators, the job needs 8"),
    "dragonfly with too many groups": (
        levels(d=FLY | {"groups": 4}),
        "4 groups need 3 global ports each, 2 routers have 2",
    ),
    "four tiers": (levels(a=LEAF, b=LEAF, c=LEAF, d=LEAF), "levels.d: 4 tiers"),
    "tiers as a node": (levels(leaf=LEAF, node=NODE), "levels.leaf: a level inside another needs a size"),
    "star without a size as a node": (levels(node={"kind": "switch", "bandwidth": 1}, ici=TORUS), "needs a size"),
    "graph outside": (levels(node=NODE, g={"kind": "graph", "file": "x"}), "only be the innermost"),
    "graph that is not there": (levels(g={"kind": "graph", "file": "x.json"}), "levels.g.file: x.json: no such"),
    "joins something else": (levels(node=NODE, ici=TORUS | {"joins": "cars"}), "levels.ici.joins"),
    "routing of another fabric": (levels(node=NODE) + "routing: dimension-order", "for a torus, mesh or hypercube"),
    "adaptive without a dragonfly": (levels(ici=TORUS) + "routing: minimal-adaptive", "is for a dragonfly"),
    "hashes on a torus": (levels(ici=TORUS) + "routing: ecmp", "is for switched networks"),
    "no such routing": (levels(ici=TORUS) + "routing: chance", "routing: Invalid enum value 'chance'"),
    "no flows": (levels(leaf=LEAF) + "flows_per_pair: 0", "flows_per_pair"),
    "pxn without rails": (levels(node=NODE, leaf=LEAF) + "pxn: true", "pxn needs a switch per node"),
    "power of nothing": (levels(leaf=LEAF) + "power: {watts: 10}", "missing required field `accelerators`"),
    "base that is not there": ("base: moebius", "base: moebius: no such topology"),
    "base of itself": ("base: net.yaml\nname: x", "goes round in a circle"),
    "base is a number": ("base: 4", "base: is not a name"),
    "torus without shape": (levels(ici=TORUS | {"shape": "2xtwo"}), "is not a shape"),
    "torus with too few flags": (levels(ici=TORUS | {"wrap": [True]}), "wrap has 1 flags for 3 axes"),
    "mesh too small": (levels(all={"kind": "full_mesh", "bandwidth": 1e9, "size": 4}), "holds 4"),
}

GRAPH_FAULTS = {
    "empty": ("", "truncated"),
    "cut": ('{"nodes": [', "truncated"),
    "no accelerator": (graph([{"id": 1, "kind": "switch"}], []), 'no node is of kind "accel"'),
    "unknown kind of node": (graph([{"id": 1, "kind": "gpu"}], []), "nodes[0].kind"),
    "two nodes of one name": (graph([A, A], []), "same id"),
    "link to nowhere": (graph([A, B], [{"source": "a", "target": "c", "Bps": 1e9}]), "links[0]: 'c' is not a node"),
    "link to itself": (graph([A, B], [{"source": "a", "target": "a", "Bps": 1e9}]), "joined to itself"),
    "no bandwidth": (graph([A, B], [{"source": "a", "target": "b"}]), "links[0]: bandwidth is missing"),
    "bandwidth 0": (graph([A, B], [{"source": "a", "target": "b", "Bps": 0}]), "above zero"),
    "bandwidth beyond any": (graph([A, B], [{"source": "a", "target": "b", "Bps": 1e30}]), "links[0].Bps: bandw"),
    "latency beyond any": (
        graph([A, B], [{"source": "a", "target": "b", "Bps": 1e9, "latency": 1e30}]), "links[0].latency: latency is",
    ),
    "cables beyond any": (
        graph([A, B], [{"source": "a", "target": "b", "Bps": 1e9, "cables": 2**62}]), "links[0].cables: Expected",
    ),
    "switches beyond any": (
        graph([A, B, {"id": "s", "kind": "switch", "switches": 2**63 - 1}], []), "nodes[2].switches: Expected",
    ),
    "unknown key": (graph([A, B], [{"source": "a", "target": "b", "Bps": 1, "weight": 2}]), "unknown key `weight`"),
    "disconnected": (graph([A, B], []), "disconnected: 'a' cannot reach 'b'"),
    "one way only": (graph([A, B], [{"source": "a", "target": "b", "Bps": 1}], directed=True), "'b' cannot reach 'a'"),
    "through an accelerator that does not forward": (
        graph([A, B, {"id": "c", "kind": "accel"}], [{"source": x, "target": "b", "Bps": 1e9} for x in "ac"]),
        "'a' cannot reach 'c'",
    ),
    "too small": (graph([A, B], [{"source": "a", "target": "b", "Bps": 1e9}]), "holds 2 accelerators, the job needs 8"),
}  # fmt: skip


def refused(path: Path, text: str | bytes, reason: str) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        load(str(path), ranks=8)
    line = str(caught.value)
    assert reason in line
    assert line.startswith(str(path)) and "\n" not in line and "\n" not in caught.value.remedy


@pytest.mark.parametrize("case", YAML_FAULTS)
def test_a_faulty_file_of_levels(case: str, tmp_path: Path) -> None:
    refused(tmp_path / "net.yaml", *YAML_FAULTS[case])


@pytest.mark.parametrize("case", GRAPH_FAULTS)
def test_a_faulty_graph(case: str, tmp_path: Path) -> None:
    refused(tmp_path / "net.json", *GRAPH_FAULTS[case])


def test_files_that_are_no_text(tmp_path: Path) -> None:
    refused(tmp_path / "net.yaml", bytes(range(256)), "is not text")
    refused(tmp_path / "net.json", b"\x80\x81" * 9, "")
    refused(tmp_path / "net.xml", "<system/>", "no GPU")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        load(str(tmp_path / "folder.yaml"), ranks=1)


@pytest.mark.parametrize(
    ("spec", "overrides", "reason", "remedy"),
    [
        ("fatree", {}, "no such topology", "fattree, fiber, gb200-nvl72"),
        ("devices", {}, "holds devices", "fattree, fiber, gb200-nvl72"),
        ("/nowhere/net.yaml", {}, "no such topology", "fattree, fiber, gb200-nvl72"),
        ("fattree", {"spine.oversubcription": "2"}, "no key", "spine.oversubscription"),
        ("fattree", {"oversubscription": "2"}, "no key", "spine.oversubscription"),
        ("fattree", {"spine.oversubscription": "two"}, "levels.spine.oversubscription", ""),
        ("torus", {"routing": "ecmp"}, "routing", ""),
        ("fattree", {"seed": "red"}, "seed", ""),
        ("hgx-b200", {"node.size": "4"}, "holds 8 accelerators", "largest"),
        ("fattree", {"routing": "dimension-order"}, "torus", ""),
        ("fattree", {"node.bandwidth": "0"}, "levels.node.bandwidth", ""),
        ("fattree", {"accelerators": "32"}, "the job needs 64", ""),
        ("fiber", {"largest": "32"}, "holds 32 accelerators", "largest=64"),
        ("torus", {"ici.shape": "3x3x3"}, "holds 27 accelerators", "shape"),
    ],
)
def test_names_and_settings(spec: str, overrides: dict[str, str], reason: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        load(spec, ranks=64, overrides=overrides)
    assert reason in str(caught.value)
    assert remedy in caught.value.remedy


def test_a_key_that_is_spelt_wrong_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(InputError) as caught:
        load("fattree", ranks=8, overrides={"leaf.bandwith": "1 GB/s"})
    assert caught.value.remedy == "did you mean leaf.bandwidth?"
    with pytest.raises(InputError) as caught:
        load("fattree", ranks=8, overrides={"colour": "red"})
    assert caught.value.remedy.startswith("known keys: routing, ")


def test_a_graph_as_networkx_writes_it_is_read(tmp_path: Path) -> None:
    nx = pytest.importorskip("networkx")
    pair = nx.MultiGraph()
    pair.add_nodes_from(["g0", "g1"], kind="accel")
    pair.add_node("s0", kind="switch")
    pair.add_edge("g0", "s0", bandwidth="450 GB/s", latency="1 us")
    pair.add_edge("g1", "s0", Bps=450e9, latency_s=1e-6)
    for edges in ("links", "edges"):
        (tmp_path / "net.json").write_text(json.dumps(nx.node_link_data(pair, edges=edges)))
        t = load(str(tmp_path / "net.json"), ranks=2)
        assert (t.accelerators, t.links, list(t.node_names)) == (2, 4, ["g0", "g1", "s0"])
        assert set(t.capacity) == {450e9}
