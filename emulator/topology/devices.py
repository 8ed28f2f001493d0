"""Accelerators: peak rates, memory, and how much of them kernels reach (``topologies/devices.yaml``).

Time of an op by the roofline with three parameters: ``t0 + max(FLOPs / (e x peak), bytes / (h x memory bandwidth))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import msgspec

from emulator import assets
from emulator.errors import InputError
from emulator.topology.document import convert, read_yaml
from emulator.units import parse_bytes, parse_flops, parse_rate, parse_seconds

Status = Literal["read", "derived", "recalled", "fitted", "assumed"]
_WEAK = ("recalled", "assumed")


@dataclass(frozen=True)
class Efficiency:
    """Roofline of one class of ops: ``t0`` seconds, ``e`` of the peak rate, ``h`` of the memory bandwidth."""

    t0: float
    e: float
    h: float
    status: str
    source: str


@dataclass(frozen=True)
class Device:
    """One accelerator. ``peak_flops`` is dense FLOP/s by torch dtype name (and ``tfloat32``).

    ``efficiency`` has one entry per class of ops that differs and ``default`` for the rest (memory-bound kernels);
    ``attention_backward`` stands beside ``attention``. ``figures``: ``burst`` efficiencies come from kernels timed
    alone and are above what a long step sustains. ``chip_share``: by the name of links, the part of the chip that
    communication kernels on them take from what computes (without an entry: none). ``assumed`` names the figures that
    nobody published or measured, or that are from memory, for the report to count.
    """

    name: str
    title: str
    vendor: str
    peak_flops: dict[str, float]
    memory_bytes: float
    memory_bandwidth: float
    efficiency: dict[str, Efficiency]
    figures: str
    chip_share: dict[str, float]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]


class _Quantity(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    value: str | float
    status: Status
    source: str = ""
    note: str = ""


class _Roofline(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    t0: str | float
    e: Annotated[float, msgspec.Meta(gt=0)]
    h: Annotated[float, msgspec.Meta(gt=0, le=1)]
    status: Status
    source: str = ""
    note: str = ""


class _Share(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    value: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    status: Status
    source: str = ""
    note: str = ""


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    title: str
    vendor: str
    peak_flops: dict[str, _Quantity]
    memory_bytes: _Quantity
    memory_bandwidth: _Quantity
    efficiency: dict[str, _Roofline] = {}
    figures: Literal["burst", "sustained"] = "burst"
    chip_share: dict[str, _Share] = {}
    aliases: list[str] = []


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    default_efficiency: dict[str, _Roofline]
    devices: dict[str, _Entry]
    sources: dict[str, str]


def device_names() -> list[str]:
    """Names of all devices, in the order of the file (aliases left out)."""
    return list(_file().devices)


def load_device(name: str) -> Device:
    """The device of a name or alias (any case). Raises InputError that lists the names."""
    file = _file()
    wanted = name.strip().lower().replace("_", "-")
    for id_, entry in file.devices.items():
        if wanted == id_ or wanted in entry.aliases:
            return _device(id_, entry, file)
    raise InputError("no such device", source=name, remedy=f"known devices: {', '.join(file.devices)}")


@cache
def _file() -> _File:
    path = assets.find("topologies", "devices.yaml", ())
    file: _File = convert(read_yaml(path, path.name), _File, source=path.name)
    return file


def _device(id_: str, entry: _Entry, file: _File) -> Device:
    figures = {
        **{f"peak_flops.{dtype}": q for dtype, q in entry.peak_flops.items()},
        "memory_bytes": entry.memory_bytes,
        "memory_bandwidth": entry.memory_bandwidth,
    }
    rooflines = file.default_efficiency | entry.efficiency
    weak = [f"{key} ({q.status})" for key, q in figures.items() if q.status in _WEAK]
    weak += [f"efficiency.{op_class} ({r.status})" for op_class, r in rooflines.items() if r.status in _WEAK]
    weak += [f"chip_share.{name} ({s.status})" for name, s in entry.chip_share.items() if s.status in _WEAK]
    cited = [q.source for q in figures.values()] + [r.source for r in rooflines.values()]
    cited += [s.source for s in entry.chip_share.values()]
    ids = {name.strip() for text in cited for name in text.split(",") if name}
    return Device(
        name=id_,
        title=entry.title,
        vendor=entry.vendor,
        peak_flops={dtype: parse_flops(q.value) for dtype, q in entry.peak_flops.items()},
        memory_bytes=parse_bytes(entry.memory_bytes.value),
        memory_bandwidth=parse_rate(entry.memory_bandwidth.value),
        efficiency={k: Efficiency(parse_seconds(r.t0), r.e, r.h, r.status, r.source) for k, r in rooflines.items()},
        figures=entry.figures,
        chip_share={name: share.value for name, share in entry.chip_share.items()},
        assumed=tuple(weak),
        sources=tuple(f"{name}: {file.sources[name]}" for name in sorted(ids)),
    )
