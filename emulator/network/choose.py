"""Which algorithm a collective runs: the ways that a fabric offers, each with its time, and the choice between them.

On a GPU fabric (``Topology.tuning``) a way is an algorithm with a protocol of NCCL (:mod:`.nccl`), and a table measured
on that machine goes before the model. Elsewhere a way is an algorithm with the latencies of its paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from emulator.errors import InputError
from emulator.network import collectives, nccl
from emulator.network.bind import BoundPhase, Fabric, bind
from emulator.network.collectives import AnyPhase
from emulator.network.layout import Layout
from emulator.network.maxmin import Floats, Ints
from emulator.topology.tuning import Measured, Tuning

AUTO = "auto"
_ON_THE_WIRE = 0.1  # the least part of a measured time that counts as bytes moving


@dataclass(frozen=True, eq=False)
class Way:
    """One way to run a collective: symbolic phases, and how a library's behaviour changes what they cost.

    ``protocol`` is empty where none is modelled. ``rate``: part of the bandwidth that goes into data.
    """

    collective: str
    algorithm: str
    phases: tuple[AnyPhase, ...]
    protocol: str = ""
    rate: float = 1.0
    tuning: Tuning | None = None
    size: nccl.Size = field(default_factory=lambda: nccl.Size(1, 1))

    @property
    def name(self) -> str:
        """``ring``, or ``ring/LL128``."""
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm

    def place(self, bound: Sequence[BoundPhase]) -> tuple[BoundPhase, ...]:
        """The bound phases with this way's latency: a library's is all before the first byte."""
        if self.tuning is None or not bound:
            return tuple(bound)
        first, *rest = bound
        if self.protocol:
            seconds = nccl.latency(self.tuning, self.collective, self.algorithm, self.protocol, self.size)
            none = np.zeros((len(first.latency), 1))
            still = [replace(phase, latency=none, hidden=none) for phase in rest]
            return (replace(first, latency=none + seconds, hidden=none), *still)
        return (replace(first, latency=first.latency + self.tuning.p2p), *rest)

    def stretch(self, placed: Sequence[BoundPhase], amount: float) -> float:
        """How many bytes go over the wire for each byte of S = ``amount`` (of the slowest group on an idle fabric)."""
        if self.tuning is None or not placed:
            return 1.0
        alone = float(np.sum([phase.fraction * amount / phase.rate_alone for phase in placed], axis=0).max())
        if alone <= 0:
            return 1.0
        table = self._measured()
        if table is not None:
            waited = float(np.sum([phase.wait(phase.fraction * amount) for phase in placed], axis=0).max())
            whole = measured_seconds(table, amount)
            return float(max(whole - waited, _ON_THE_WIRE * whole) / alone)
        if not self.protocol:
            return 1.0
        least = nccl.least_seconds(self.tuning, self.collective, self.protocol, self.size, amount)
        return float(max(1 / self.rate, least / alone))

    def seconds(self, placed: Sequence[BoundPhase], amount: float) -> Floats:
        """Seconds of S = ``amount`` bytes on the idle fabric, f64[G] (0-d without phases)."""
        if not placed:
            return np.zeros(1)
        stretch = self.stretch(placed, amount)
        total: Floats = np.sum([phase.seconds(stretch * phase.fraction * amount) for phase in placed], axis=0)
        return total

    def _measured(self) -> Measured | None:
        if self.tuning is None:
            return None
        rows = self.tuning.measured
        return next((t for t in rows if (t.collective, t.ranks) == (self.collective, self.size.n)), None)


def measured_seconds(table: Measured, amount: float) -> float:
    """Seconds of S = ``amount`` by a table: straight lines between sizes on log-log axes; below the smallest size its
    time, above the largest its bandwidth."""
    if amount <= table.bytes[0]:
        return float(table.seconds[0])
    if amount >= table.bytes[-1]:
        return float(table.seconds[-1] * amount / table.bytes[-1])
    return float(np.exp(np.interp(np.log(amount), np.log(table.bytes), np.log(table.seconds))))


def ways(
    fabric: Fabric, collective: str, layout: Layout, wanted: str = AUTO, *, root: int = 0,
    splits: Floats | None = None, copies: float = 1.0,
) -> list[Way]:  # fmt: skip
    """The ways to run a collective in a group of this layout, preferred first.

    ``wanted``: ``auto`` (all that are weighed), an algorithm, or ``algorithm/protocol``. Raises InputError if it does
    not exist, does not apply to this group, or needs switches that the fabric does not have.
    """
    n = len(layout.domains)
    wanted, _, protocol = wanted.partition("/")
    tuning: Tuning | None = getattr(fabric, "tuning", None)
    names = _names(fabric, collective, layout, tuning, splits) if wanted == AUTO else [wanted]
    size = nccl.Size(n, len(np.unique(layout.domains)))
    found = []
    for name in names:
        needs = collectives.switches_for(collective, name)
        if needs is not None and needs not in getattr(fabric, "in_network", ()):
            raise InputError(f"{name} needs switches that reduce ({needs}), which this topology does not have")
        phases = collectives.phases(
            collective, name, n, domains=layout.domains, grid=layout.grid, root=root, splits=splits, copies=copies
        )
        way = Way(collective, name, phases, tuning=tuning, size=size)
        found += [way] if tuning is None or n == 1 else _protocols(way, tuning)
    chosen = [way for way in found if protocol in ("", way.protocol)]
    if not chosen:
        known = ", ".join(way.protocol for way in found if way.protocol) or "none on this topology"
        raise InputError(f"{wanted} has no protocol {protocol!r} here; known: {known}", source="--algo")
    return chosen


def _names(fabric: Fabric, collective: str, layout: Layout, tuning: Tuning | None, splits: Floats | None) -> list[str]:
    offered = collectives.algorithms(
        collective, len(layout.domains), layout.domains, layout.grid, splits=splits,
        switches=getattr(fabric, "in_network", ()),
    )  # fmt: skip
    if tuning is None or collective not in nccl.ALGORITHMS:
        return offered
    largest = int(np.bincount(np.unique(layout.domains, return_inverse=True)[1]).max())
    few = largest < nccl.nvls_from(tuning)
    weighed = [name for name in nccl.ALGORITHMS[collective] if name in offered]
    return [name for name in weighed if not (few and name.startswith("nvls"))] or offered


def _protocols(way: Way, tuning: Tuning) -> list[Way]:
    """The way with each protocol that its algorithm runs with; as it is if NCCL has no such algorithm."""
    if way.algorithm not in nccl.ALGORITHMS.get(way.collective, ()) or way.algorithm == "direct":
        return [way]
    rates = [(p, nccl.rate(tuning, way.algorithm, p, way.size)) for p in nccl.PROTOCOLS]
    return [replace(way, protocol=p, rate=r) for p, r in rates if r > 0]


def fastest(
    fabric: Fabric, members: Ints, layout: Layout, collective: str, amount: float, wanted: str = AUTO, *,
    root: int = 0, splits: Floats | None = None,
) -> tuple[Way, tuple[BoundPhase, ...]]:  # fmt: skip
    """The way with the least time for S = ``amount`` bytes on the idle fabric, and its phases placed.

    ``members`` i64[G, n]: instances with the same ``layout``; the slowest one counts.
    """
    candidates = ways(fabric, collective, layout, wanted, root=root, splits=splits)
    return fastest_of(place_all(fabric, members, candidates), amount)


def fastest_of(
    weighed: Sequence[tuple[Way, tuple[BoundPhase, ...]]], amount: float
) -> tuple[Way, tuple[BoundPhase, ...]]:
    """Of several ways (:func:`place_all`) the fastest for S = ``amount`` bytes; of equal ones (to 1e-9) the first."""
    seconds = [float(way.seconds(placed, amount).max()) for way, placed in weighed]
    limit = min(seconds) * (1 + 1e-9)
    return next(one for one, needed in zip(weighed, seconds, strict=True) if needed <= limit)


def place_all(fabric: Fabric, members: Ints, candidates: Sequence[Way]) -> list[tuple[Way, tuple[BoundPhase, ...]]]:
    """Every way with its phases on the fabric; ways with the same phases are routed once."""
    routed: dict[int, tuple[BoundPhase, ...]] = {}
    for way in candidates:
        if id(way.phases) not in routed:
            routed[id(way.phases)] = bind(fabric, members, way.phases)
    return [(way, way.place(routed[id(way.phases)])) for way in candidates]
