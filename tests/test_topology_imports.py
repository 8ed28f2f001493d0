"""Files of ASTRA-sim, NCCL and SimAI, known by their content."""

import json
from pathlib import Path

import numpy as np
import pytest
from built import all_pairs

from emulator.errors import InputError
from emulator.topology.graph import Topology
from emulator.topology.load import load

NCCL = Path(__file__).parent / "data" / "ncclxml"
ASTRA = "topology: [ {} ]\nnpus_count: [ {} ]\nbandwidth: [ {} ]  # GB/s\nlatency: [ {} ]  # ns\n"
GIB = 2.0**30
SIMAI = """9 2 2 3 10 H100
4 5 6 7 8
0 4 2880Gbps 0.000025ms 0
0 6 400Gbps 0.0005ms 0
1 4 2880Gbps 0.000025ms 0
1 7 400Gbps 0.0005ms 0
2 5 2880Gbps 0.000025ms 0
2 6 400Gbps 0.0005ms 0
3 5 2880Gbps 0.000025ms 0
3 7 400Gbps 0.0005ms 0
6 8 400Gbps 0.0005ms 0
7 8 400Gbps 0.0005ms 0
"""


def read(tmp_path: Path, text: str, ranks: int | None = None, name: str = "net.txt") -> Topology:
    (tmp_path / name).write_text(text)
    return load(str(tmp_path / name), ranks=ranks)


def test_astra_sim_counts_in_gib_and_a_switch_waits_twice(tmp_path: Path) -> None:
    t = read(tmp_path, ASTRA.format("Switch", 8, 50.0, 500.0), name="net.yml")
    assert t.accelerators == 8
    assert set(t.capacity) == {50 * GIB}
    assert t.route(np.array([0]), np.array([5])).latency == pytest.approx(1e-6)  # two hops of 500 ns


def test_astra_sim_rings_go_both_ways_and_meshes_have_a_link_per_pair(tmp_path: Path) -> None:
    ring = read(tmp_path, ASTRA.format("Ring", 8, 50.0, 500.0))
    src, dst = np.zeros(7, dtype=np.int64), np.arange(1, 8)
    hops = [1, 2, 3, 4, 3, 2, 1]
    np.testing.assert_allclose(ring.route(src, dst).latency, np.array(hops) * 500e-9)
    mesh = read(tmp_path, ASTRA.format("FullyConnected", 8, 50.0, 500.0))
    assert mesh.links == 56 and set(mesh.capacity) == {50 * GIB}


def test_astra_sim_dimensions_have_links_of_their_own(tmp_path: Path) -> None:
    t = read(tmp_path, ASTRA.format("Switch, Ring", "8, 4", "370.0, 46.0", "900.0, 1500.0"))
    assert t.accelerators == 32 and t.level_names == ("Switch 0", "Ring 1 x")
    assert t.domain.tolist() == [i // 8 for i in range(32)]
    a, b = np.array([0, 0, 0]), np.array([3, 8, 11])  # other place, other node, both
    routes = t.route(a, b)
    np.testing.assert_allclose(routes.latency, [1.8e-6, 1.5e-6, 3.3e-6])
    # both dimensions are charged: through the switch to place 3, then on ring 3
    names = [t.link_name(int(i)) for i in routes.link[routes.ptr[2] :]]
    assert names[0].startswith("npu0>") and names[1].endswith(">npu3") and names[2] == "npu3>npu11"
    assert {t.capacity[i] for i in routes.link[routes.ptr[1] : routes.ptr[2]]} == {46 * GIB}


def test_astra_sim_files_take_settings(tmp_path: Path) -> None:
    (tmp_path / "net.yml").write_text(ASTRA.format("Ring", 8, 50.0, 500.0))
    t = load(str(tmp_path / "net.yml"), ranks=8, overrides={"dim0.bandwidth": "1 GB/s"})
    assert set(t.capacity) == {1e9}


# expected values: counts of elements and attributes in the files
@pytest.mark.parametrize(
    ("name", "gpus", "nics", "nets", "nvlinks", "cpus"),
    [
        ("azure_ndv2-topo", 8, 1, 0, 0, 2),
        ("azure_ndv4-topo", 8, 8, 0, 0, 4),
        ("azure_ndv5-topo", 8, 8, 0, 0, 2),
        ("azure_ncv4-topo", 4, 0, 1, 48, 4),
    ],
)
def test_nccl_topologies(name: str, gpus: int, nics: int, nets: int, nvlinks: int, cpus: int) -> None:
    t = load(str(NCCL / f"{name}.xml"), ranks=None)
    assert t.accelerators == gpus
    assert f"{gpus} GPUs, {nics} NIC functions, {nets} nets" in t.built
    assert (
        f"{nvlinks} NVLinks in 4 entries (4 lead to the GPU itself" if nvlinks else "no NVLink in the file"
    ) in t.built
    assert sum(n.startswith("cpu") for n in t.node_names) == cpus
    src, dst = all_pairs(t)
    assert len(t.route(src, dst).link)


def test_nccl_rates_are_lanes_times_generation_not_gt_per_second() -> None:
    t = load(str(NCCL / "azure_ndv5-topo.xml"), ranks=8)
    pcie = t.capacity[t.link_level == t.level_names.index("PCIe")]
    assert set(pcie) == {48e9}  # 16 lanes of PCIe 5 as NCCL counts them, below 32 GT/s x 16 / 8 = 64
    between = t.capacity[t.link_level == t.level_names.index("CPU")]
    assert set(between) == {10e9}
    nic = load(str(NCCL / "azure_ncv4-topo.xml"), ranks=4)
    assert set(nic.capacity[nic.link_level == nic.level_names.index("NIC")]) == {12.5e9}  # 100,000 Mbit/s


def test_nvlinks_join_gpus_once_and_go_to_switches(tmp_path: Path) -> None:
    def gpu(i: int, links: str) -> str:
        return (
            f'<pci busid="000{i}:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
            f'<gpu dev="{i}" sm="90" rank="{i}" gdr="1">{links}</gpu></pci>'
        )

    def net(*gpus: str) -> str:
        return f'<system version="1"><cpu numaid="0" vendor="AuthenticAMD">{"".join(gpus)}</cpu></system>'

    to = '<nvlink target="{}" count="{}" tclass="{}"/>'
    switched = net(*(gpu(i, to.format("0000:f0:00.0", 18, "0x068000")) for i in range(4)))
    t = read(tmp_path, switched)
    assert t.accelerators == 4 and "nvswitch 0000:f0:00.0" in list(t.node_names)
    nvlink = t.link_level == t.level_names.index("NVLink")
    np.testing.assert_allclose(t.capacity[nvlink], 18 * 20.6e9)
    assert t.cables[nvlink].tolist() == [18] * 8
    pair = net(gpu(0, to.format("0001:00:00.0", 4, "0x030200")), gpu(1, to.format("0000:00:00.0", 4, "0x030200")))
    t = read(tmp_path, pair)
    assert (t.link_level == t.level_names.index("NVLink")).sum() == 2  # one cable bundle, both directions
    assert t.route(np.array([0]), np.array([1])).link.tolist() == [
        int(np.flatnonzero((t.link_src == 0) & (t.link_dst == 1))[0])
    ]


def test_simai_lists_keep_traffic_of_a_server_on_its_nvswitch(tmp_path: Path) -> None:
    t = read(tmp_path, SIMAI)
    assert (t.accelerators, len(t.switches), t.links, t.device) == (4, 5, 20, "h100-sxm5-80g")
    assert t.domain.tolist() == [0, 0, 1, 1]
    routes = t.route(np.array([0, 0, 0]), np.array([1, 2, 3]))
    np.testing.assert_allclose(routes.latency, [5e-8, 1e-6, 2e-6])
    assert t.capacity[routes.link[0]] == 360e9
    # in one server and on one leaf: still over the NVSwitch
    same_leaf = read(tmp_path, SIMAI.replace("1 7 400", "1 6 400").replace("3 7 400", "3 6 400"))
    ends = [same_leaf.link_name(int(i)) for i in same_leaf.route(np.array([0]), np.array([1])).link]
    assert ends == ["0>4", "4>1"]


def test_simai_lists_can_be_hashed(tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text(SIMAI)
    t = load(str(tmp_path / "net.txt"), ranks=4, overrides={"routing": "ecmp", "flows_per_pair": "3"})
    assert t.routing == "ecmp, 3 flows per pair, seed 0"


FAULTS = {
    "astra, lists of different length": (ASTRA.format("Ring, Ring", 8, 50, 500), "npus_count: 1 values for 2 dim"),
    "astra, unknown kind": (ASTRA.format("Torus", 8, 50, 500), "topology[0]: Invalid enum value 'Torus'"),
    "astra, no bandwidth": (ASTRA.format("Ring", 8, 0, 500), "bandwidth must be above zero"),
    "astra, bandwidth as text": (ASTRA.format("Ring", 8, "fast", 500), "bandwidth[0]: Expected `float`"),
    "astra, unknown key": (ASTRA.format("Ring", 8, 50, 500) + "links: 4", "unknown key `links`"),
    "astra, count 0": (ASTRA.format("Ring", 0, 50, 500), "npus_count"),
    "nccl, cut": ('<system version="1"><cpu>', "is not XML"),
    "nccl, another document": ("<html></html>", "begins with <html>"),
    "nccl, no GPU": ('<system version="1"><cpu numaid="0"/></system>', "no GPU"),
    "nccl, entities": ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "document type"),
    "nccl, a number that is none": (
        '<system><cpu><pci busid="1" class="0x030200" link_width="wide"/></cpu></system>', "'wide' is not a whole"),
    "nccl, NVLink to nowhere": (
        '<system><cpu><pci busid="1" class="0x030200"><gpu dev="0" sm="90"><nvlink target="9" count="1"/>'
        "</gpu></pci></cpu></system>", "gpu0: NVLink to '9', which is not in the file"),
    "nccl, no links": (
        '<system><cpu><pci busid="1" class="0x030200"><gpu dev="0" sm="90"><nvlink target="1" count="0" '
        'tclass="0x068000"/></gpu></pci></cpu></system>', "gpu0: nvlink count: 0 links are none"),
    "nccl, links without end": (
        f'<system><cpu><pci busid="1" class="0x030200" link_width="{"9" * 400}"/></cpu></system>',
        "pci link_width: 99999999999999999999 is beyond any machine"),
    "astra, latency without end": (ASTRA.format("Ring", 8, 50, 1e40), "latency is beyond any machine"),
    "simai, nodes without end": (SIMAI.replace("9", "9" * 12, 1), "cannot join 999999999999 nodes"),
    "simai, no GPU": ("5 2 2 3 10 H100\n", "no GPU is left"),
    "simai, no switches": ("9 2 2 3 10 H100\n", "line 2: the line with the numbers"),
    "simai, switches numbered wrongly": (SIMAI.replace("4 5 6 7 8", "4 5 6 7 9"), "line 2: the switches should be"),
    "simai, a line is missing": (SIMAI.rpartition("7 8")[0], "the header says 10 links, 9 follow"),
    "simai, a field is missing": (SIMAI.replace("0 6 400Gbps 0.0005ms 0", "0 6 400Gbps 0"), "line 4: 4 fields"),
    "simai, bandwidth without unit of time": (SIMAI.replace("0 6 400Gbps", "0 6 400G"), "line 4: '400G'"),
    "simai, latency that is none": (SIMAI.replace("0.0005ms 0\n1 4", "soon 0\n1 4"), "line 4"),
    "simai, link to nowhere": (SIMAI.replace("0 6 400", "0 99 400"), "99 is not a node"),
    "simai, no number": (SIMAI.replace("0 6 400", "0 six 400"), "'six' is not a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_file_is_told_in_one_line(case: str, tmp_path: Path) -> None:
    text, reason = FAULTS[case]
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    line = str(caught.value)
    assert reason in line and line.startswith(str(tmp_path)) and "\n" not in line


def test_a_graph_takes_routing_but_no_other_setting(tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text(SIMAI)
    with pytest.raises(InputError, match=r"no key 'nic\.bandwidth'") as caught:
        load(str(tmp_path / "net.txt"), ranks=4, overrides={"nic.bandwidth": "1"})
    assert "flows_per_pair" in caught.value.remedy
    with pytest.raises(InputError, match="flows_per_pair"):
        load(str(tmp_path / "net.txt"), ranks=4, overrides={"flows_per_pair": "0"})


def test_a_job_larger_than_the_file_is_refused(tmp_path: Path) -> None:
    for text in (SIMAI, ASTRA.format("Ring", 4, 50, 500), json.dumps({"nodes": [{"id": 0, "kind": "accel"}]})):
        with pytest.raises(InputError, match="needs 64"):
            read(tmp_path, text, ranks=64)


ONE_GPU = (
    '<?xml version="1.0" encoding="{}"?><system><cpu numaid="0"><pci busid="1" class="0x030200"><gpu dev="0" sm="90"/>'
    "</pci></cpu></system>"
)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-8-SIG", "UTF-16", "ISO-8859-1"])
def test_xml_is_read_in_the_encoding_it_declares(encoding: str, tmp_path: Path) -> None:
    text = ONE_GPU.format(encoding.removesuffix("-SIG"))
    (tmp_path / "net.xml").write_bytes(text.encode(encoding))
    assert load(str(tmp_path / "net.xml"), ranks=1).accelerators == 1


def test_entities_are_refused_in_utf_16_too(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE a [<!ENTITY b "c">]><system/>'
    (tmp_path / "net.xml").write_bytes(text.encode("UTF-16"))
    with pytest.raises(InputError, match="document type"):
        load(str(tmp_path / "net.xml"), ranks=1)


def test_a_graph_may_begin_with_a_mark_but_not_be_utf_16(tmp_path: Path) -> None:
    text = json.dumps({"nodes": [{"id": 0, "kind": "accel"}]})
    (tmp_path / "net.json").write_bytes(text.encode("utf-8-sig"))
    assert load(str(tmp_path / "net.json"), ranks=1).accelerators == 1
    for encoding in ("utf-16", "utf-16-le"):
        (tmp_path / "net.json").write_bytes(text.encode(encoding))
        with pytest.raises(InputError, match="is UTF-16") as caught:
            load(str(tmp_path / "net.json"), ranks=1)
        assert caught.value.remedy == "save it as UTF-8"


def test_settings_that_a_graph_does_not_heed_are_said(tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text(SIMAI)

    def findings(**overrides: str) -> tuple[str, ...]:
        return load(str(tmp_path / "net.txt"), ranks=4, overrides=overrides).findings

    assert findings(seed="5", flows_per_pair="3") == ("seed=5 changed nothing", "flows_per_pair=3 changed nothing")
    assert findings(routing="spread") == ("routing=spread changed nothing",)
    assert findings(routing="ecmp", seed="5", flows_per_pair="3") == ()
