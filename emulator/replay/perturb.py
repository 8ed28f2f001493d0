"""What is not as it should be: slow ranks, degraded links, for the whole step or part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.topology.graph import Topology
from emulator.topology.show import find_links
from emulator.units import parse_seconds

_LEAST, _MOST = 1e-6, 1e6  # of a factor: beyond, times would grow or vanish without bound
_LARGEST_SHARE = 1 - _LEAST  # of a chip: at least a millionth computes on
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LinkChange:
    """Links whose capacity is multiplied by ``factor`` from ``start`` to ``end`` (seconds; None: to the end).

    ``text`` is how it was asked for.
    """

    links: Ints
    factor: float
    start: float = 0.0
    end: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Perturbation:
    """``slowdown``: compute of these ranks takes so many times as long; ``changes`` of link capacities."""

    slowdown: Mapping[int, float] = field(default_factory=dict)
    changes: Sequence[LinkChange] = ()

    def compute_factor(self, world: int) -> Floats:
        """Factor on the compute times of every rank, shape (world,)."""
        factor = np.ones(world)
        for rank, slower in self.slowdown.items():
            if not 0 <= rank < world:
                raise InputError(f"rank {rank} is outside the world of {world}", source="--straggler")
            factor[rank] = slower
        return factor

    def link_events(self, capacity: Floats) -> dict[int, tuple[tuple[float, float], ...]]:
        """(time, capacity from then on) of every link that changes, in order of time; time 0 is the start."""
        edges: dict[int, list[tuple[float, float | None, float]]] = {}
        for change in self.changes:
            for link in change.links.tolist():
                edges.setdefault(link, []).append((change.start, change.end, change.factor))
        events = {}
        for link, spans in edges.items():
            times = sorted({0.0, *(t for start, end, _ in spans for t in (start, end) if t is not None)})
            listed: list[tuple[float, float]] = []
            for time in times:
                value = float(capacity[link])
                for start, end, factor in spans:
                    if start <= time and (end is None or time < end):
                        value *= factor
                if not listed or listed[-1][1] != value:
                    listed.append((time, value))
            events[link] = tuple(listed)
        return events


def parse_straggler(text: str) -> tuple[int, float]:
    """``RANK:FACTOR``, e.g. ``17:1.5``: compute of rank 17 takes 1.5 times as long."""
    rank, _, factor = text.partition(":")
    if not rank.strip().isdigit():
        raise InputError(f"{text!r} is not RANK:FACTOR", source="--straggler", remedy="for example --straggler 17:1.5")
    return int(rank), _factor(factor, text, "--straggler", "for example --straggler 17:1.5")


def parse_stragglers(texts: Sequence[str]) -> dict[int, float]:
    """Several ``RANK:FACTOR`` as {rank: factor}."""
    found: dict[int, float] = {}
    for rank, factor in map(parse_straggler, texts):
        if rank in found:
            raise InputError(f"two factors for rank {rank}: {found[rank]:g} and {factor:g}", source="--straggler")
        found[rank] = factor
    return found


def parse_degrade(text: str, topology: Topology) -> LinkChange:
    """``LINK:FACTOR[@t1-t2]``, e.g. ``gpu3-leaf3:0.5@10ms-20ms``; LINK is ``a-b`` (both directions) or ``a>b``."""
    remedy = "for example --degrade 'gpu3-leaf3:0.5' or 'gpu3>leaf3:0.1@10ms-20ms'"
    link, separator, rest = text.rpartition(":")
    if not separator or not link:
        raise InputError(f"{text!r} is not LINK:FACTOR[@t1-t2]", source="--degrade", remedy=remedy)
    factor, at, window = rest.partition("@")
    value = _factor(factor, text, "--degrade", remedy)
    try:
        links = find_links(topology, link)
    except InputError as error:
        raise InputError(error.reason, source="--degrade", place=error.place, remedy=error.remedy) from None
    if not at:
        return LinkChange(links, value, text=text)
    first, dash, last = window.partition("-")
    try:
        start, end = parse_seconds(first), parse_seconds(last) if dash else None
    except ValueError as error:
        raise InputError(f"{text!r}: {error}", source="--degrade", remedy=remedy) from None
    if start < 0 or (end is not None and end <= start):
        raise InputError(f"{text!r}: the window is empty or before the step", source="--degrade", remedy=remedy)
    return LinkChange(links, value, start, end, text)


def parse_chip_share(text: str, topology: Topology) -> dict[str, float]:
    """``LINKS=K,...``, e.g. ``NVLink=0.1,NIC=0.05``: by the name of a level of links, the part of the chip that
    communication over them takes from what computes (0 to below 1).
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, given = part.partition("=")
        level = next((known for known in topology.level_names if known.lower() == name.strip().lower()), None)
        if level is None:
            raise InputError(
                f"{topology.name} has no links {name!r}", source="--chip-share",
                remedy=f"its links: {', '.join(topology.level_names) or 'none'}",
            )  # fmt: skip
        if level in found:
            raise InputError(f"two shares for {level}: {text!r}", source="--chip-share")
        try:
            found[level] = float(given)
        except ValueError:
            found[level] = -1.0
        if not 0 <= found[level] <= _LARGEST_SHARE:
            raise InputError(
                f"{part!r}: the share has to be a number from 0 to below 1 (at most {_LARGEST_SHARE:g})",
                source="--chip-share", remedy="for example --chip-share NVLink=0.1",
            )  # fmt: skip
    return found


def _factor(text: str, whole: str, option: str, remedy: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < np.inf:
        raise InputError(f"{whole!r}: the factor has to be a number above 0", source=option, remedy=remedy)
    if not _LEAST <= value <= _MOST:
        raise InputError(
            f"{whole!r}: the factor is beyond any machine ({_LEAST:g} to {_MOST:g})", source=option, remedy=remedy
        )
    if option == "--degrade" and value > 1:
        raise InputError(f"{whole!r}: the factor of a degraded link is at most 1", source=option, remedy=remedy)
    return value
