"""What a topology is, in figures and findings: for ``emu topo show`` and ``check``, and for links named by people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from typing import Literal

import numpy as np

from emulator.errors import InputError
from emulator.topology.devices import load_device
from emulator.topology.graph import Ints, NodeNames, Topology
from emulator.topology.load import load
from emulator.topology.shortest import ShortestPaths
from emulator.units import format_rate

_EXACT_UP_TO = 8  # accelerators: 35 ways to halve them, each a minimum cut
_CUT_UP_TO = 256  # accelerators: a few maximum flows of a second each
_SEARCH_UP_TO = 2048  # accelerators: one search each
_SLOW = 1e6  # bytes/s; a link below this is a forgotten unit
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class LevelSummary:
    """The links of one level: directed bundles, cables in them (each direction counted), rates in bytes/s."""

    name: str
    links: int
    cables: int
    cable_bandwidth: tuple[float, float]  # least, most; what the model uses
    latency: tuple[float, float]
    total_bandwidth: float


@dataclass(frozen=True)
class Description:
    """A topology in figures. ``nodes``: kind to (nodes in the model, devices they stand for).

    ``diameter`` in links, ``bisection`` in bytes/s per direction, with how it was found (None: too large to find);
    ``power`` in W of what ``power_note`` says (None: not published).
    """

    name: str
    built: str
    routing: str
    device: str | None
    nodes: dict[str, tuple[int, int]]
    levels: list[LevelSummary]
    diameter: int | None
    bisection: float | None
    bisection_note: str
    oversubscription: dict[str, float]
    power: float | None
    power_note: str
    sources: tuple[str, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """One thing that ``check`` found."""

    severity: Severity
    text: str


def describe(topology: Topology) -> Description:
    """Counts, diameter, bisection and oversubscription of a topology; computed where the builder does not know."""
    t, facts = topology, topology.facts
    bisection, note = facts.bisection, facts.bisection_note
    if bisection is None and 1 < t.accelerators <= _CUT_UP_TO:
        bisection, note = _bisection(t)
    return Description(
        name=t.name,
        built=t.built,
        routing=t.routing,
        device=t.device,
        nodes=_node_counts(t),
        levels=[_level(t, int(i)) for i in np.unique(t.link_level)],
        diameter=facts.diameter if facts.diameter is not None else _diameter(t),
        bisection=bisection,
        bisection_note=note,
        oversubscription=dict(facts.oversubscription),
        power=t.power,
        power_note=t.power_note,
        sources=t.sources,
        findings=t.findings,
    )


def check(spec: str, *, ranks: int | None, overrides: Mapping[str, str] | None = None) -> list[Finding]:
    """Everything worth saying about a topology that can be built; an empty list means all is well.

    Raises InputError for one that cannot.
    """
    t = load(spec, ranks=ranks, overrides=overrides)
    findings = [Finding("warning", text) for text in t.findings]
    slow = np.flatnonzero(t.capacity < _SLOW)
    if len(slow):
        rate = format_rate(float(t.capacity[slow[0]]))
        text = f"{len(slow)} links are very slow ({t.link_name(int(slow[0]))}: {rate}); is a unit missing?"
        findings.append(Finding("warning", text))
    there = set(zip(t.link_src.tolist(), t.link_dst.tolist(), strict=True))
    lonely = sorted((a, b) for a, b in there if (b, a) not in there)
    if lonely:
        a, b = (t.node_names[i] for i in lonely[0])
        findings.append(Finding("warning", f"{len(lonely)} links have no way back ({a}>{b})"))
    if ranks is not None and t.accelerators > ranks:
        findings.append(Finding("note", f"{t.accelerators - ranks:,} of {t.accelerators:,} accelerators have no rank"))
    if t.device is None:
        findings.append(Finding("note", "no default device: give --device to time compute"))
    else:
        try:
            load_device(t.device)
        except InputError as error:
            findings.append(Finding("error", f"device: {error}"))
    if not t.sources:
        findings.append(Finding("note", "no sources named"))
    return findings


def find_links(topology: Topology, text: str) -> Ints:
    """The links that ``a-b`` (both directions) or ``a>b`` (one) means, all parallel cables.

    Raises InputError if there is no such node or link.
    """
    number = {name: i for i, name in enumerate(topology.node_names)}
    for i, sign in enumerate(text):
        a, b = number.get(text[:i].strip()), number.get(text[i + 1 :].strip())
        if sign not in "->" or a is None or b is None:
            continue
        found = (topology.link_src == a) & (topology.link_dst == b)
        if sign == "-":
            found |= (topology.link_src == b) & (topology.link_dst == a)
        if found.any():
            return np.flatnonzero(found).astype(np.int64)
        near = topology.link_dst[topology.link_src == a][:4]
        raise InputError(
            f"no link joins {text[:i].strip()} and {text[i + 1 :].strip()}",
            place=text,
            remedy=f"{text[:i].strip()} has links to {', '.join(topology.node_names[int(n)] for n in near)}",
        )
    ends = [part.strip() for part in text.replace(">", "-").split("-")]
    strange = [end for end in ends if end not in number]
    if len(ends) != 2 or not strange:
        raise InputError("a link is written a-b (both directions) or a>b (one)", place=text)
    close = get_close_matches(strange[0], list(number), n=3) or list(topology.node_names[:3])
    raise InputError(f"no node {strange[0]!r}", place=text, remedy=f"nodes are called {', '.join(close)}, ...")


def _node_counts(t: Topology) -> dict[str, tuple[int, int]]:
    names, start = t.node_names, 0
    if not isinstance(names, NodeNames):
        return {
            "accelerator": (t.accelerators, t.accelerators),
            "switch": (len(t.switches), int(t.switches.sum())),
        }
    counts: dict[str, tuple[int, int]] = {}
    for prefix, shape in names.groups:
        nodes = int(np.prod(shape))
        first = start - t.accelerators
        devices = nodes if first < 0 else int(t.switches[first : first + nodes].sum())
        counts[prefix] = (nodes, devices)
        start += nodes
    return counts


def _level(t: Topology, level: int) -> LevelSummary:
    at = t.link_level == level
    per_cable = t.capacity[at] / t.cables[at]
    return LevelSummary(
        t.level_names[level],
        int(at.sum()),
        int(t.cables[at].sum()),
        (float(per_cable.min()), float(per_cable.max())),
        (float(t.latency[at].min()), float(t.latency[at].max())),
        float(t.capacity[at].sum()),
    )


def _diameter(t: Topology) -> int | None:
    if t.accelerators > _SEARCH_UP_TO:
        return None
    router = ShortestPaths.of(t)
    return max(int(router.search(a).hops[: t.accelerators].max()) for a in range(t.accelerators))


def _bisection(t: Topology) -> tuple[float, str]:
    """Least capacity between two halves of the accelerators, switches on whichever side suits.

    Exact by trying every halving of a few accelerators; else the best of a few regular ones, an upper bound.
    """
    everyone, half = range(t.accelerators), t.accelerators // 2
    if t.accelerators <= _EXACT_UP_TO:
        halves = [set(chosen) for chosen in combinations(everyone, half)]
        return min(_cut(t, chosen) for chosen in halves), "exact, every halving tried"
    strides = [k for k in range(1, half + 1) if half % k == 0]
    halves = [{a for a in everyone if a // k % 2 == 0} for k in strides]
    halves = [chosen for chosen in halves if len(chosen) == half]
    return min(_cut(t, h) for h in halves), f"estimate, an upper bound: best of {len(halves)} regular halvings"


def _cut(t: Topology, half: set[int]) -> float:
    """Minimum cut from one half of the accelerators to the other (maximum flow)."""
    import networkx as nx  # noqa: PLC0415 -- costs half of a command's start-up

    graph: nx.DiGraph[int] = nx.DiGraph()
    for a, b, capacity in zip(t.link_src.tolist(), t.link_dst.tolist(), t.capacity.tolist(), strict=True):
        before = graph.get_edge_data(a, b, {"capacity": 0.0})["capacity"]
        graph.add_edge(a, b, capacity=before + capacity)
    for accelerator in range(t.accelerators):
        graph.add_edge(*((-1, accelerator) if accelerator in half else (accelerator, -2)))  # no capacity: unlimited
    return float(nx.maximum_flow_value(graph, -1, -2))
