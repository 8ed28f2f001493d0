"""NCCL's topology of one node (what NCCL_TOPO_DUMP_FILE writes): GPUs, NICs, PCIe switches, NUMA nodes, NVLinks.

GPUs become accelerators, all else switches: NICs lead nowhere within one node, but show where rails leave. Rates are
those NCCL computes with: lanes x PCIe generation, and a constant per NVLink generation (src/graph/topo.h and xml.cc of
NCCL 2.30.7). Nothing in the file has a latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from emulator.errors import InputError
from emulator.topology.explicit import Attributes, Link, Node, NodeLink
from emulator.topology.spec import Rate

_GPU, _NVSWITCH, _BRIDGE = ("0x03",), ("0x0680",), ("0x0604",)
_NIC = ("0x02",)
_LANE = {"2.5": 1.5, "5": 3.0, "8": 6.0, "16": 12.0, "32": 24.0, "64": 48.0}  # GT/s: Gbit/s as NCCL counts a lane
_DEFAULT_LANE, _DEFAULT_WIDTH = 6.0, 16  # for a file that leaves them empty (virtual machines)
_NVLINK = {
    60: 18e9,
    70: 20e9,
    80: 20e9,
    86: 12e9,
    90: 20.6e9,
    100: 40.1e9,
}  # bytes/s of one link, by compute capability
_BETWEEN_CPUS = {"AuthenticAMD": 16e9, "GenuineIntel": 10e9}  # bytes/s
_CPU_DEFAULT = 10e9
_DEFAULT_NET = 10_000  # Mbit/s
_MOST = 10**6  # of any number in the file: links, lanes, Mbit/s


def read(data: bytes, name: str) -> NodeLink:
    """The node-link document of such a file, in the encoding that it declares. Raises InputError: not XML, no GPU, a
    link to nowhere."""
    ascii_only = data.replace(b"\0", b"")  # of UTF-16 too
    if b"<!DOCTYPE" in ascii_only or b"<!ENTITY" in ascii_only:
        raise InputError("has a document type; a topology of NCCL has none")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the latter: an encoding that there is none
        raise InputError(f"is not XML: {error}") from None
    if root.tag != "system":
        raise InputError(f"is XML, but begins with <{root.tag}>, not with <system> as a topology of NCCL does")
    nodes, links, gpus = _Reader(root).result()
    if not any(node.kind == "accel" for node in nodes):
        raise InputError("no GPU in it (no PCI device of class 0x03)")
    return NodeLink(nodes, links, multigraph=True, graph=Attributes(name=name, description=_summary(root, gpus)))


class _Reader:
    """Walks the tree once and collects nodes and cables."""

    def __init__(self, root: Element) -> None:
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.nvlinks: list[tuple[str, Element, int]] = []
        self.names: dict[str, str] = {}  # bus id to node
        self.gpus = 0
        cpus = root.findall("cpu")
        for cpu in cpus:
            self._cpu(cpu)
        for i, cpu in enumerate(cpus):
            rate = _BETWEEN_CPUS.get(cpu.get("vendor", ""), _CPU_DEFAULT)
            self.links += [
                self._link(f"cpu{a.get('numaid', '0')}", f"cpu{cpu.get('numaid', '0')}", rate, "CPU") for a in cpus[:i]
            ]

    def result(self) -> tuple[list[Node], list[Link], int]:
        for gpu, link, capability in self.nvlinks:
            self._nvlink(gpu, link, capability)
        return self.nodes, self.links, self.gpus

    def _cpu(self, cpu: Element) -> None:
        name = _numa(cpu)
        self.nodes.append(Node(name, "switch"))
        for child in cpu:
            self._device(child, name)

    def _device(self, device: Element, parent: str) -> None:
        if device.tag == "nic":
            for net in device.findall("net"):
                self._add(net.get("name", "net"), parent, _speed(net), "NIC")
            return
        if device.tag != "pci":
            return
        kind, bus = device.get("class", ""), device.get("busid", f"pci{len(self.nodes)}")
        rate = _pci(device)
        if kind.startswith(_GPU):
            gpu = device.find("gpu")
            name = f"gpu{self.gpus if gpu is None else gpu.get('dev', self.gpus)}"
            self.gpus += 1
            self.nodes.append(Node(name, "accel", domain=0))
            self.links.append(self._link(name, parent, rate, "PCIe"))
            capability = 0 if gpu is None else _whole(gpu, "sm", 0)
            self.nvlinks += [(name, link, capability) for link in ([] if gpu is None else gpu.findall("nvlink"))]
        elif kind.startswith(_NIC):
            name = next((net.get("name", bus) for net in device.iter("net")), bus)
            self._add(name, parent, rate, "PCIe")
        else:
            name = bus
            self._add(name, parent, rate, "PCIe")
            for child in device:
                self._device(child, name)
        self.names[bus] = name

    def _add(self, name: str, parent: str, rate: float, level: str) -> None:
        self.nodes.append(Node(name, "switch"))
        self.links.append(self._link(name, parent, rate, level))

    def _nvlink(self, gpu: str, link: Element, capability: int) -> None:
        """Cables to another GPU (listed at both: counted at the first) or to an NVSwitch; to itself: none."""
        target, kind = link.get("target", ""), link.get("tclass", "")
        each = _NVLINK.get(capability, _NVLINK.get(capability // 10 * 10, 20e9))
        if kind.startswith(_NVSWITCH):
            other = self.names.setdefault(target, f"nvswitch {target}")
            if all(node.id != other for node in self.nodes):
                self.nodes.append(Node(other, "switch"))
        elif target in self.names:
            other = self.names[target]
            if other <= gpu:
                return
        else:
            raise InputError(f"NVLink to {target!r}, which is not in the file", place=gpu)
        cables = _whole(link, "count", 1)
        if not cables:
            raise InputError("0 links are none: take the entry out", place=f"{gpu}: nvlink count")
        self.links.append(self._link(gpu, other, each, "NVLink", cables))

    @staticmethod
    def _link(a: str, b: str, rate: float, level: str, cables: int = 1) -> Link:
        return Link(a, b, bandwidth=Rate(rate), cables=cables, level=level)


def _numa(cpu: Element) -> str:
    return f"cpu{cpu.get('numaid', '0')}"


def _pci(device: Element) -> float:
    """Bytes/s of a PCIe connection."""
    lane = _LANE.get(device.get("link_speed", "").split(" ")[0].removesuffix(".0"), _DEFAULT_LANE)
    width = _whole(device, "link_width", 0) or _DEFAULT_WIDTH
    return lane * width / 8 * 1e9


def _speed(net: Element) -> float:
    return (_whole(net, "speed", 0) or _DEFAULT_NET) * 1e6 / 8


def _whole(element: Element, attribute: str, default: int) -> int:
    """A number of an element, ``default`` if it is not there or empty."""
    text = element.get(attribute) or str(default)
    place = f"{element.tag} {attribute}"
    if not text.isdecimal():
        raise InputError(f"{text!r} is not a whole number", place=place)
    if len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise InputError(f"{text[:20]} is beyond any machine (more than {_MOST:,})", place=place)
    return int(text)


def _summary(root: Element, gpus: int) -> str:
    """What the file says, in counts; NVLinks are those it lists."""
    functions = sum(pci.get("class", "").startswith(_NIC) for pci in root.iter("pci"))
    nets = sum(1 for _ in root.iter("net"))
    entries = list(root.iter("nvlink"))
    links = sum(_whole(entry, "count", 1) for entry in entries)
    text = f"one node as NCCL sees it: {gpus} GPUs, {functions} NIC functions, {nets} nets"
    if not links:
        return text + "; no NVLink in the file: GPUs are joined by PCIe only"
    own = sum(1 for target, bus in _ends(root) if target == bus)
    return (
        text
        + f", {links} NVLinks in {len(entries)} entries"
        + (f" ({own} lead to the GPU itself: left out)" if own else "")
    )


def _ends(root: Element) -> Iterator[tuple[str, str]]:
    for pci in root.iter("pci"):
        for entry in pci.iter("nvlink"):
            yield entry.get("target", ""), pci.get("busid", "")
