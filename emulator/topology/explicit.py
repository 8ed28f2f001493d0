"""Any graph, as networkx writes it: node-link JSON in, node-link JSON out.

Nodes are ``{"id", "kind": "accel" | "switch"}``, links ``{"source", "target"}`` with ``bandwidth`` (or ``Bps``) and
``latency`` (or ``latency_s``). Accelerators are numbered in the order of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
import numpy as np

from emulator.errors import InputError
from emulator.topology.document import refusal
from emulator.topology.graph import Floats, Topology, check_size
from emulator.topology.shortest import ShortestPaths
from emulator.topology.spec import Count, Flows, Latency, Rate, decode_quantity
from emulator.unpack import without_mark

if TYPE_CHECKING:
    from networkx import MultiDiGraph

Name = str | int


class Node(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """``switches``: how many equal switches the node stands for; ``domain``: the server an accelerator sits in."""

    id: Name
    kind: Literal["accel", "switch"]
    domain: Name | None = None
    switches: Count = 1


class Link(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """One cable (both directions in an undirected graph), or ``cables`` equal ones; bandwidth is that of one."""

    source: Name
    target: Name
    bandwidth: Rate | None = None
    Bps: Rate | None = None
    latency: Latency | None = None
    latency_s: Latency | None = None
    cables: Count = 1
    level: str = "link"
    key: Name | None = None  # networkx writes it for multigraphs


class Attributes(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """``forwards``: accelerators pass traffic on (a torus), default no."""

    name: str = ""
    description: str = ""
    device: str | None = None
    forwards: bool = False


class GraphRouting(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What ``--set`` may say of a graph: all shortest paths in equal parts, or hashed flows on some of them."""

    routing: Literal["spread", "ecmp"] = "spread"
    flows_per_pair: Flows = 8
    seed: int = 0

    @property
    def text(self) -> str:
        """For reports."""
        return self.routing + (f", {self.flows_per_pair} flows per pair, seed {self.seed}" if self.flows else "")

    @property
    def flows(self) -> int:
        """Hashed flows per pair; 0: spread."""
        return self.flows_per_pair if self.routing == "ecmp" else 0


class NodeLink(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """The document; links stand under ``links`` or, as newer networkx writes it, under ``edges``."""

    nodes: list[Node]
    links: list[Link] = []
    edges: list[Link] = []
    directed: bool = False
    multigraph: bool = False
    graph: Attributes = Attributes()


_SPREAD = GraphRouting()


def read(path: Path, routing: GraphRouting = _SPREAD) -> Topology:
    """The topology of a node-link JSON file. Raises InputError naming file, place and reason."""
    source = str(path)
    try:
        document = msgspec.json.decode(without_mark(path.read_bytes(), source), type=NodeLink, dec_hook=decode_quantity)
    except OSError as error:
        raise InputError(error.strerror or str(error), source=source) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusal(error, source=source) from None
    try:
        return from_node_link(document, path.stem, routing)
    except InputError as error:
        raise InputError(error.reason, source=source, place=error.place, remedy=error.remedy) from None


def from_node_link(document: NodeLink, default_name: str = "graph", routing: GraphRouting = _SPREAD) -> Topology:
    """The topology of a decoded document. Raises InputError: unknown or double node, no bandwidth, disconnected."""
    number = {node.id: i for i, node in enumerate(sorted(document.nodes, key=lambda n: n.kind != "accel"))}
    accelerators = [node for node in document.nodes if node.kind == "accel"]
    switches = [node for node in document.nodes if node.kind == "switch"]
    if len(number) < len(document.nodes):
        raise InputError("two nodes have the same id", place="nodes")
    if not accelerators:
        raise InputError('no node is of kind "accel"', place="nodes")
    columns, levels = _link_columns(document, number)
    if routing.flows:  # hashed flows take one cable of a bundle
        many = columns[4].astype(np.int64)
        check_size(int(many.sum()), "links")
        columns[[2, 4]] /= many
        columns = np.repeat(columns, many, axis=1)
    src, dst, capacity, latency, cables, level = columns
    ends = (src.astype(np.int64), dst.astype(np.int64))
    forwards = document.graph.forwards
    homes = {home: i for i, home in enumerate(dict.fromkeys(node.domain for node in accelerators))}
    domain = np.array([homes[node.domain] for node in accelerators], dtype=np.int64)
    router = ShortestPaths(
        len(number), len(accelerators), *ends, latency, cables.astype(np.int64), forwards,
        domain=domain if len(homes) > 1 else None, flows=routing.flows, seed=routing.seed,
    )  # fmt: skip
    _check_connected(router, list(number))
    return Topology(
        name=document.graph.name or default_name,
        built=document.graph.description
        or f"a graph of {len(accelerators):,} accelerators, {len(switches):,} switches and {len(src):,} links",
        accelerators=len(accelerators),
        node_names=[str(name) for name in number],
        link_src=ends[0],
        link_dst=ends[1],
        capacity=capacity,
        latency=latency,
        link_level=level.astype(np.int64),
        level_names=levels,
        cables=router.cables,
        switches=np.array([node.switches for node in switches], dtype=np.int64),
        domain=domain,
        routing=routing.text,
        router=router,
        forwards=forwards,
        device=document.graph.device,
    )


def _link_columns(document: NodeLink, number: dict[Name, int]) -> tuple[Floats, tuple[str, ...]]:
    """Source, destination, capacity, latency, cables and level of every directed link, one row each; level names."""
    name, links = ("links", document.links) if document.links else ("edges", document.edges)
    rows: list[tuple[float, ...]] = []
    levels: dict[str, int] = {}
    for i, link in enumerate(links):
        place = f"{name}[{i}]"
        bandwidth = link.bandwidth if link.bandwidth is not None else link.Bps
        if bandwidth is None:
            raise InputError("bandwidth is missing", place=place, remedy='add "bandwidth": "400 Gbit/s" (or "Bps")')
        for end in (link.source, link.target):
            if end not in number:
                raise InputError(f"{end!r} is not a node", place=place)
        if link.source == link.target:
            raise InputError(f"{link.source!r} is joined to itself", place=place)
        latency = link.latency if link.latency is not None else link.latency_s or 0.0
        a, b = number[link.source], number[link.target]
        rest = (bandwidth * link.cables, latency, link.cables, levels.setdefault(link.level, len(levels)))
        rows.append((a, b, *rest))
        if not document.directed:
            rows.append((b, a, *rest))
    return np.array(rows, dtype=np.float64).reshape(-1, 6).T, tuple(levels)


def _check_connected(router: ShortestPaths, names: list[Name]) -> None:
    for source in range(router.accelerators):
        missing = np.flatnonzero(router.search(source).hops[: router.accelerators] < 0)
        if len(missing):
            raise InputError(
                f"disconnected: {names[source]!r} cannot reach {names[int(missing[0])]!r}",
                place="links",
                remedy="join them by a switch, or say that accelerators forward (graph.forwards)",
            )


def node_link(topology: Topology) -> dict[str, Any]:
    """The topology as a node-link document, one link per direction; reading it back gives the same network."""
    t = topology
    names = list(t.node_names)
    nodes = [
        Node(names[i], "accel", domain=int(t.domain[i])) for i in range(t.accelerators)
    ] + [Node(names[t.accelerators + i], "switch", switches=int(n)) for i, n in enumerate(t.switches)]  # fmt: skip
    links = [
        Link(
            names[int(t.link_src[i])],
            names[int(t.link_dst[i])],
            bandwidth=Rate(t.capacity[i] / t.cables[i]),
            latency=Latency(t.latency[i]),
            cables=int(t.cables[i]),
            level=t.level_names[int(t.link_level[i])],
        )
        for i in range(t.links)
    ]
    graph = Attributes(t.name, t.built, t.device, t.forwards)
    document = NodeLink(nodes, links, directed=True, multigraph=True, graph=graph)
    plain: dict[str, Any] = msgspec.to_builtins(document, enc_hook=float)
    return plain


def to_networkx(topology: Topology) -> MultiDiGraph[str]:
    """The topology as a networkx graph, with the attributes of ``node_link``."""
    import networkx as nx  # noqa: PLC0415 -- costs half of a command's start-up

    return cast("MultiDiGraph[str]", nx.node_link_graph(node_link(topology), edges="links"))
