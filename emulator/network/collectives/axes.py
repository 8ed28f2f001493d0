"""Rings over the axes of a torus, both ways round and all axes at once.

The data is cut into as many parts as there are axes; part p gathers along axis p first, then p+1, and so on, so that in
every stage each axis serves one part. Along a closed axis of X members a chunk goes both ways, half way round (for even
X the last hop takes one half each way): ``floor(X/2) a + (X-1)/(2X) V/B`` for V gathered bytes. Along an open axis
every member passes on what comes from either side: ``(X-1) a + (X-1)/X V/B``. With d equal closed axes an all-gather
takes ``d floor(X/2) a + (n-1)/n S/(2 d B)`` (JAX scaling book, sharding: the bandwidth of all axes together).

A reduce-scatter is the all-gather backwards, an all-reduce the one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from emulator.errors import InputError
from emulator.network.collectives.phase import Phase
from emulator.network.collectives.schedule import Case, Grid, Step
from emulator.network.maxmin import Floats, Ints


@dataclass(frozen=True)
class _Stage:
    """One part gathers along one axis; the axes ``done`` are gathered already."""

    part: int
    axis: int
    done: tuple[int, ...]


def _grid(case: Case) -> Grid:
    if case.grid is None:
        raise InputError("multi_ring needs members that fill a rectangle of a torus or mesh")
    return case.grid


def _stages(axes: int) -> list[list[_Stage]]:
    """Stages in sequence; in each one every part has its own axis."""
    orders = [[(part + k) % axes for k in range(axes)] for part in range(axes)]
    return [[_Stage(p, orders[p][k], tuple(orders[p][:k])) for p in range(axes)] for k in range(axes)]


def chunks(case: Case) -> Floats:
    """Each member's part of S, once per axis, in halves."""
    count = 2 * len(_grid(case).shape)
    return np.full(case.n * count, 1 / (case.n * count))


def _hops(length: int, closed: bool) -> list[tuple[int, int, tuple[int, ...]]]:
    """(distance, direction, halves) of every step's senders: in step t what came from ``distance - 1`` is passed on."""
    both: tuple[int, ...] = (0, 1)
    last = (length - 1) // 2 if closed else length - 1
    hops = [(t, way, both) for t in range(1, last + 1) for way in (1, -1)]
    if closed and length % 2 == 0:
        hops += [(length // 2, 1, (0,)), (length // 2, -1, (1,))]
    return hops


def _along(grid: Grid, stage: _Stage) -> list[list[tuple[Ints, Ints, Ints]]]:
    """Transfers (source, destination, chunk) of one stage, for each distance in turn."""
    length, axes = grid.shape[stage.axis], len(grid.shape)
    place = np.indices(grid.shape)
    blocks = _block(grid, stage.done)  # members whose chunks a member has when the stage begins
    steps: list[list[tuple[Ints, Ints, Ints]]] = []
    for distance, way, halves in _hops(length, grid.closed[stage.axis]):
        to = place.copy()
        to[stage.axis] = (place[stage.axis] + way) % length
        origin = place.copy()
        origin[stage.axis] = (place[stage.axis] - way * (distance - 1)) % length
        exists = np.ones(grid.shape, dtype=bool)
        if not grid.closed[stage.axis]:
            for end in (place[stage.axis] + way, place[stage.axis] - way * (distance - 1)):
                exists &= (end >= 0) & (end < length)
        owners = blocks[grid.at[tuple(origin)][exists]]
        width = owners.shape[1] * len(halves)
        chunk = (owners[:, :, np.newaxis] * axes + stage.part) * 2 + np.array(halves)
        src, dst = grid.at[exists], grid.at[tuple(to)][exists]
        while len(steps) < distance:
            steps.append([])
        steps[distance - 1].append((np.repeat(src, width), np.repeat(dst, width), chunk.ravel()))
    return steps


def _block(grid: Grid, done: tuple[int, ...]) -> Ints:
    """i64[n, w]: for each member those that differ from it on the axes ``done`` only."""
    moved = np.moveaxis(grid.at, done, range(len(done)))
    flat = moved.reshape(int(np.prod(moved.shape[: len(done)])), -1)
    block = np.empty((grid.at.size, flat.shape[0]), dtype=np.int64)
    for column in flat.T:
        block[column] = column
    return block


def all_gather(case: Case) -> Iterator[Step]:
    """Stage by stage, distance by distance, all in one channel: the parts go in step."""
    grid = _grid(case)
    for stages in _stages(len(grid.shape)):
        per_part = [_along(grid, stage) for stage in stages]
        for distance in range(max(map(len, per_part))):
            moves = [move for steps in per_part if distance < len(steps) for move in steps[distance]]
            src, dst, chunk = (np.concatenate(column) for column in zip(*moves, strict=True))
            yield Step(src, dst, chunk)


def reduce_scatter(case: Case) -> Iterator[Step]:
    """The all-gather backwards, every transfer the other way and added."""
    for step in reversed(list(all_gather(case))):
        yield Step(step.dst, step.src, step.chunk, reduce=True)


def all_reduce(case: Case) -> Iterator[Step]:
    """Reduce-scatter, then all-gather."""
    yield from reduce_scatter(case)
    yield from all_gather(case)


def all_gather_phases(case: Case) -> tuple[Phase, ...]:
    """One phase per stage."""
    grid = _grid(case)
    return tuple(_phase(grid, stages) for stages in _stages(len(grid.shape)))


def reduce_scatter_phases(case: Case) -> tuple[Phase, ...]:
    """One phase per stage, the last of the all-gather first, with all flows turned round."""
    return tuple(
        Phase(phase.dst, phase.src, phase.fraction, chains=phase.chains) for phase in reversed(all_gather_phases(case))
    )


def all_reduce_phases(case: Case) -> tuple[Phase, ...]:
    """Reduce-scatter, then all-gather."""
    return reduce_scatter_phases(case) + all_gather_phases(case)


def _phase(grid: Grid, stages: list[_Stage]) -> Phase:
    src, dst, fraction, chains = [], [], [], []
    count = 0
    for stage in stages:
        length, closed = grid.shape[stage.axis], grid.closed[stage.axis]
        held = np.prod([grid.shape[axis] for axis in stage.done]) / (grid.at.size * len(grid.shape))
        lines = np.moveaxis(grid.at, stage.axis, -1).reshape(-1, length)
        hops = length // 2 if closed else length - 1
        for turned in (lines, lines[:, ::-1]):
            edges = length if closed else length - 1
            passed = np.full(edges, (length - 1) / 2) if closed else np.arange(1.0, length)
            src.append(turned[:, :edges].ravel())
            dst.append(np.roll(turned, -1, axis=1)[:, :edges].ravel())
            fraction.append(np.tile(held * passed, len(lines)))
            first = count + np.arange(len(lines))[:, np.newaxis] * edges
            start = np.arange(edges if closed else 1)
            run = (start[:, np.newaxis] + np.arange(hops)) % edges
            chains.append((first[:, :, np.newaxis] + run[np.newaxis]).reshape(-1, hops))
            count += len(lines) * edges
    deepest = max(chain.shape[1] for chain in chains)
    padded = [np.pad(chain, ((0, 0), (0, deepest - chain.shape[1])), constant_values=-1) for chain in chains]
    return Phase(np.concatenate(src), np.concatenate(dst), np.concatenate(fraction), chains=(np.concatenate(padded),))
