"""The structs of a topology file (docs/topology.md): levels from the innermost out, strict, with units.

Every field that the file may have is here and nowhere else, so this is also the list of keys that ``--set`` knows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from emulator.units import parse_rate, parse_seconds


class Rate(float):
    """Bytes/s per direction; in files a positive number, with a unit if it likes."""


class Latency(float):
    """Seconds; in files a number that is not negative, with a unit if it likes."""


Count = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
Ratio = Annotated[float, msgspec.Meta(gt=0)]


class LinkFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What every kind of level says of its links.

    ``bandwidth`` is that of one cable in one direction, as printed on the box; the model uses ``bandwidth x
    efficiency``, the part that a well-tuned library reaches. ``latency`` belongs to one link. ``links`` is the label
    of the links in reports.
    """

    bandwidth: Rate
    efficiency: Fraction = 1.0
    latency: Latency = Latency(0.0)
    links: str = ""

    @property
    def capacity(self) -> float:
        """Bytes/s of one cable in one direction that the model uses."""
        return self.bandwidth * self.efficiency


class Switch(LinkFields, tag_field="kind", tag="switch", frozen=True, kw_only=True):
    """A scale-up domain: ``size`` accelerators, each with one link to one non-blocking switch."""

    size: Count


class Tier(LinkFields, tag_field="kind", tag="tier", frozen=True, kw_only=True):
    """One layer of switches of a Clos network, with the cables from the layer below.

    ``radix``: ports of a switch. ``oversubscription``: capacity into a switch of the layer below over capacity from
    it to this layer. ``parallel``: cables between a pair (default: as few switches as the ports allow).
    First tier only: ``rails`` (accelerator i of a node hangs on rail i modulo rails), ``planes`` (each accelerator
    has a port on every one of so many equal networks), ``down`` (at most so many accelerators per switch).
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
    as the job. ``wrap``: which axes close (one flag or one per axis). ``cube``: axes close only if all lengths are
    multiples of this. An axis of length 2 has one cable, or two with ``double``. ``ties``: traffic to the point half
    way round goes ``both`` ways in equal parts or ``one`` way (upwards).
    """

    shape: str | list[Count] | None = None
    axes: Count = 3
    wrap: bool | list[bool] = True
    cube: Count | None = None
    double: bool = False
    ties: Literal["both", "one"] = "both"


class FullMesh(LinkFields, tag_field="kind", tag="full_mesh", frozen=True, kw_only=True):
    """A cable between every pair of accelerators; ``bandwidth`` is that of one cable."""

    size: Count | None = None


Level = Switch | Tier | Torus | FullMesh
LEVELS: dict[str, type[Level]] = {"switch": Switch, "tier": Tier, "torus": Torus, "full_mesh": FullMesh}


class TopologyFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A whole file. ``levels`` are read one by one, so that an error can name the level.

    ``accelerators``: build for so many instead of for the job; ``largest``: more than so many do not exist.
    ``bundled``: equal switches of a tier, which spread routing uses in equal parts, become one node (exact, and much
    smaller). ``called`` is what an accelerator is called in reports.
    """

    name: str
    description: str
    levels: dict[str, dict[str, Any]]
    device: str | None = None
    called: str = "gpu"
    routing: Literal["spread", "dimension-order"] = "spread"
    accelerators: Count | None = None
    largest: Count | None = None
    bundled: bool = True
    sources: dict[str, str] = {}


def decode_quantity(kind: type, value: Any) -> Any:
    """msgspec hook for Rate and Latency; raises ValueError with the reason."""
    if kind is Rate:
        rate = parse_rate(value)
        if rate <= 0:
            raise ValueError(f"bandwidth must be above zero, got {value!r}")
        return Rate(rate)
    if kind is Latency:
        latency = parse_seconds(value)
        if latency < 0:
            raise ValueError(f"latency must not be negative, got {value!r}")
        return Latency(latency)
    raise NotImplementedError(kind)
