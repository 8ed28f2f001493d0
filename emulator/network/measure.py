"""One collective on an otherwise idle fabric, as nccl-tests measures it: time, algbw, busbw by size and algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite

import numpy as np

from emulator.errors import InputError
from emulator.network import collectives
from emulator.network.bind import BoundPhase, Fabric
from emulator.network.choose import AUTO, Way, fastest_of, place_all, ways
from emulator.network.clock import Clock
from emulator.network.collectives import Step
from emulator.network.fluid import Network
from emulator.network.layout import Layout, layout
from emulator.network.maxmin import Ints
from emulator.network.steps_player import play

Placed = list[tuple[Way, tuple[BoundPhase, ...]]]
_MESSAGES = 2_000_000  # more than so many flows one by one are refused


@dataclass(frozen=True)
class Row:
    """One measurement: S = ``bytes`` in ``seconds``.

    ``chosen``: what ``auto`` takes at this size (None: not weighed, as one was asked for). ``protocol``: empty where
    none is modelled. ``algbw`` and ``busbw`` (bytes/s): None where no byte moves.
    """

    algorithm: str
    protocol: str
    bytes: float
    seconds: float
    algbw: float | None
    busbw: float | None
    chosen: bool | None


def measure(
    fabric: Fabric, members: Sequence[int] | Ints, collective: str, sizes: Iterable[float], *, algorithm: str = AUTO,
    mode: str = "phases", root: int = 0, copies: float = 1.0,
) -> list[Row]:  # fmt: skip
    """Times of a collective among ``members`` (accelerators) for every size S in bytes, sizes in the order given.

    ``algorithm``: one (``ring``, ``ring/LL``), or ``auto`` for every one that applies. With several protocols the
    fastest counts. ``mode="steps"`` plays every message as a flow of its own, with the latencies of its path;
    algorithms whose switches reduce have no such messages. A barrier has no bytes, whatever the sizes. ``copies`` as in
    :func:`.collectives.phases`.

    Raises InputError if the algorithm does not exist or does not apply, or the members cannot reach each other.
    """
    if collective == "barrier":
        sizes = [0.0]
    group = np.asarray(members, dtype=np.int64)
    where = layout(fabric, group)
    if mode not in ("phases", "steps"):
        raise InputError(f"unknown mode {mode!r}", source="--mode", remedy="known: phases, steps")
    with np.errstate(divide="ignore", invalid="ignore"):  # a link of no bandwidth: told by _rows
        weighed: Placed = []  # to weigh all takes long in large groups
        if algorithm == AUTO:
            offered = ways(fabric, collective, where, root=root, copies=copies)
            weighed = place_all(fabric, group[np.newaxis], offered)
        if mode == "steps":
            every = _by_steps(fabric, group, where, collective, sizes, algorithm, root, weighed)
            return list(chain.from_iterable(every))
        asked = [
            way
            for name in _asked(fabric, collective, where, algorithm)
            for way in ways(fabric, collective, where, name, root=root, copies=copies)
        ]
        placed = place_all(fabric, group[np.newaxis], asked)
        return [row for size in sizes for row in _rows(placed, weighed, collective, len(group), size)]


def _asked(fabric: Fabric, collective: str, where: Layout, algorithm: str) -> list[str]:
    if algorithm != AUTO:
        return [algorithm]
    return collectives.algorithms(
        collective, len(where.domains), where.domains, where.grid, switches=getattr(fabric, "in_network", ())
    )


def _rows(placed: Placed, weighed: Placed, collective: str, n: int, size: float) -> list[Row]:
    """The fastest way of every algorithm for one size, in order of preference."""
    best: dict[str, tuple[float, Way]] = {}
    for way, bound in placed:
        seconds = float(way.seconds(bound, size).max())
        if not isfinite(seconds):
            raise InputError(f"{collective} never ends: a link between its members has no bandwidth")
        if way.algorithm not in best or seconds < best[way.algorithm][0]:
            best[way.algorithm] = (seconds, way)
    taken = fastest_of(weighed, size)[0].name if weighed else None
    return [
        _row(way, collective, n, size, seconds, chosen=None if taken is None else way.name == taken)
        for seconds, way in best.values()
    ]


def _row(way: Way, collective: str, n: int, size: float, seconds: float, *, chosen: bool | None) -> Row:
    algbw = size / seconds if seconds > 0 and size > 0 else None
    busbw = None if algbw is None else algbw * collectives.bus_factor(collective, n)
    return Row(way.algorithm, way.protocol, size, seconds, algbw, busbw, chosen)


def _by_steps(
    fabric: Fabric, group: Ints, where: Layout, collective: str, sizes: Iterable[float], algorithm: str, root: int,
    weighed: Placed,
) -> Iterable[list[Row]]:  # fmt: skip
    names = [
        name
        for name in _asked(fabric, collective, where, algorithm)
        if algorithm != AUTO or collectives.switches_for(collective, name) is None
    ]
    for size in sizes:
        rows = []
        taken = fastest_of(weighed, size)[0].algorithm if weighed else None
        for name in names:
            if collectives.switches_for(collective, name):
                raise InputError(f"{name} has no steps to play: its switches add up and copy what passes")
            seconds = play_alone(fabric, group, where, collective, name, size, root=root)
            way = Way(collective, name, ())
            chosen = None if taken is None else name == taken
            rows.append(_row(way, collective, len(group), size, seconds, chosen=chosen))
        yield rows


def play_alone(
    fabric: Fabric, group: Ints, where: Layout, collective: str, algorithm: str, size: float, *, root: int = 0
) -> float:
    """Seconds of one collective of S = ``size`` bytes with every message as a flow of its own, on an idle fabric."""
    how = (collective, algorithm, len(group))
    chunk_bytes = collectives.chunks(*how, domains=where.domains, grid=where.grid, root=root) * size
    steps = collectives.steps(*how, domains=where.domains, grid=where.grid, root=root)
    clock, ends = Clock(), [0.0]
    network = Network(clock, fabric.capacity)
    play(network, fabric, group, list(_bounded(steps)), chunk_bytes, lambda: ends.append(clock.now))
    clock.run()
    return ends[-1]


def _bounded(steps: Iterable[Step]) -> Iterable[Step]:
    count = 0
    for step in steps:
        count += len(step.src)
        if count > _MESSAGES:
            raise InputError(
                f"more than {_MESSAGES:,} messages to play one by one", remedy="fewer ranks, or --mode phases"
            )
        yield step
