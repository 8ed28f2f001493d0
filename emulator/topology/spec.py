"""The structs of a topology file (docs/topology.md): levels from the innermost out, strict, with units.

Every field that the file may have is here and nowhere else, so this is also the list of keys that ``--set`` knows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from emulator.units import parse_rate, parse_seconds


class Rate(float):
    """Bytes/s per direction; in files a number from SLOWEST to FASTEST, with a unit if it likes."""


class Latency(float):
    """Seconds; in files a number from 0 to LONGEST, with a unit if it likes."""


# Beyond any machine, and far from where sums and products of floats overflow or vanish.
SLOWEST, FASTEST = 1.0, 1e18  # bytes/s of a cable
LONGEST = 3600.0  # seconds of latency
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Flows = Annotated[int, msgspec.Meta(ge=1, le=1024)]  # real libraries open a handful
Fraction = Annotated[float, msgspec.Meta(ge=1e-6, le=1)]
Ratio = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
Watts = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class LinkFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What every kind of level says of its links.

    ``bandwidth`` is that of one cable in one direction, as printed on the box; the model uses ``bandwidth x
    efficiency``, the part that a well-tuned library reaches. ``latency`` belongs to one link. ``links`` is the label
    of the links in reports. A level round other levels ``joins`` all ``accelerators`` in one network, or is as many
    equal, separate networks as a node below has accelerators: network i joins accelerator i of every node (``rails``).
    """

    bandwidth: Rate
    efficiency: Fraction = 1.0
    latency: Latency = Latency(0.0)
    links: str = ""
    joins: Literal["accelerators", "rails"] = "accelerators"

    @property
    def capacity(self) -> float:
        """Bytes/s of one cable in one direction that the model uses."""
        return self.bandwidth * self.efficiency


class Switch(LinkFields, tag_field="kind", tag="switch", frozen=True, kw_only=True):
    """A star: ``size`` accelerators (default: as many as the job), each with one link to one non-blocking switch."""

    size: Count | None = None


class Tier(LinkFields, tag_field="kind", tag="tier", frozen=True, kw_only=True):
    """One layer of switches of a Clos network, with the cables from the layer below.

    ``radix``: ports of a switch. ``oversubscription``: capacity into a switch of the layer below over capacity from
    it to this layer. ``parallel``: cables between a pair (default: as few switches as the ports allow).
    ``down``: ports of a switch that face down at most (default: what the radix leaves). First tier only: ``rails``
    (accelerator i of a node hangs on rail i modulo rails), ``planes`` (each accelerator has a port on every one of so
    many equal networks).
    """

    radix: Count
    oversubscription: Ratio = 1.0
    parallel: Count | None = None
    rails: Count = 1
    planes: Count = 1
    down: Count | None = None


class Torus(LinkFields, tag_field="kind", tag="torus", frozen=True, kw_only=True):
    """A torus or mesh of accelerators that forward.

    ``shape``: lengths of the axes (``4x4x4``), default the most cubic shape of ``axes`` axes with as many accelerators
    as the job, ``size`` at most (more make further tori, joined by the level above). ``wrap``: which axes close (one
    flag or one per axis); with ``cube`` only if all lengths are multiples of it, with ``full`` only those so long.
    ``twist``: going round a short axis moves half way along the long ones (shapes k x 2k, k x k x 2k, k x 2k x 2k).
    An axis of length 2 has one cable, or two with ``double``. ``ties``: traffic to the point half way round goes
    ``both`` ways in equal parts or ``one`` way (upwards).
    """

    shape: str | list[Count] | None = None
    size: Count | None = None
    axes: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    full: Count | None = None
    twist: bool = False
    wrap: bool | list[bool] = True
    cube: Count | None = None
    double: bool = False
    ties: Literal["both", "one"] = "both"


class FullMesh(LinkFields, tag_field="kind", tag="full_mesh", frozen=True, kw_only=True):
    """A cable between every pair of accelerators; ``bandwidth`` is that of one cable."""

    size: Count | None = None


class Hypercube(LinkFields, tag_field="kind", tag="hypercube", frozen=True, kw_only=True):
    """2^d accelerators that forward, a cable where numbers differ in one bit; default: as many as needed."""

    size: Count | None = None


class Dragonfly(LinkFields, tag_field="kind", tag="dragonfly", frozen=True, kw_only=True):
    """Groups of ``routers`` switches, all joined to each other, and the groups again all joined to each other.

    Each router has ``hosts`` accelerators and ``globals`` ports to other groups (Kim et al. 2008: p, a, h), with
    ``between`` cables for every two groups (default: as many as the ports allow); ``groups`` default as the job needs.
    ``bandwidth`` and ``latency`` are those of an accelerator's cable; ``local_*`` and ``global_*`` of the cables inside
    and between groups (default: the same).
    """

    hosts: Count
    routers: Count
    globals: Count
    groups: Count | None = None
    between: Count | None = None
    local_bandwidth: Rate | None = None
    local_latency: Latency | None = None
    global_bandwidth: Rate | None = None
    global_latency: Latency | None = None


class Graph(msgspec.Struct, tag_field="kind", tag="graph", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A node described by another file: node-link JSON, an NCCL topology, a SimAI list; only innermost."""

    file: str
    links: str = ""


Level = Switch | Tier | Torus | FullMesh | Hypercube | Dragonfly | Graph
LEVELS: dict[str, type[Level]] = {
    "switch": Switch, "tier": Tier, "torus": Torus, "full_mesh": FullMesh, "hypercube": Hypercube,
    "dragonfly": Dragonfly, "graph": Graph,
}  # fmt: skip
Routing = Literal["spread", "ecmp", "dimension-order", "minimal-adaptive"]


class Power(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Published power: ``watts`` of every ``accelerators`` accelerators, and what that counts."""

    watts: Watts
    accelerators: Count
    note: str = ""


class TopologyFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A whole file. ``levels`` are read one by one, so that an error can name the level.

    ``accelerators``: build for so many instead of for the job; ``largest``: more than so many do not exist.
    ``bundled``: equal switches of a tier, which spread routing uses in equal parts, become one node (exact, and much
    smaller). ``called`` is what an accelerator is called in reports. ``flows_per_pair`` and ``seed`` belong to ecmp.
    ``pxn``: traffic to another rail goes over the own node's switch to that rail first. ``in_network``: what switches
    can add up and copy, within servers (``nvls``) and between them (``sharp``). ``tuning``: the GPU generation whose
    NCCL constants apply, or a ``tuning.Tuning``; none (or ``none``): no GPU fabric.
    """

    name: str
    description: str
    levels: dict[str, dict[str, Any]]
    device: str | None = None
    called: str = "gpu"
    routing: Routing = "spread"
    flows_per_pair: Flows = 8
    seed: int = 0
    pxn: bool = False
    accelerators: Count | None = None
    largest: Count | None = None
    bundled: bool = True
    power: Power | None = None
    in_network: list[Literal["nvls", "sharp"]] = []
    tuning: str | dict[str, Any] | None = None
    sources: dict[str, str] = {}


# Fields that are a flag, or one for each of several.
FLAGS = frozenset(
    field.name
    for struct in (TopologyFile, *LEVELS.values())
    for field in msgspec.structs.fields(struct)
    if field.type in (bool, bool | list[bool])
)


def decode_quantity(kind: type, value: Any) -> Any:
    """msgspec hook for Rate and Latency; raises ValueError with the reason."""
    if kind is Rate:
        rate = parse_rate(value)
        if rate <= 0:
            raise ValueError(f"bandwidth must be above zero, got {value!r}")
        if not SLOWEST <= rate <= FASTEST:
            raise ValueError(f"bandwidth is beyond any machine (1 B/s to 1 EB/s), got {value!r}")
        return Rate(rate)
    if kind is Latency:
        latency = parse_seconds(value)
        if latency < 0:
            raise ValueError(f"latency must not be negative, got {value!r}")
        if latency > LONGEST:
            raise ValueError(f"latency is beyond any machine (up to 1 h), got {value!r}")
        return Latency(latency)
    raise NotImplementedError(kind)
