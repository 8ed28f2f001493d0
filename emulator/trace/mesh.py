"""Who is who: coordinates of ranks, members of groups, the program and the numbers of each rank.

Everything is an array over ranks, so that a mesh of a million ranks costs a few array operations.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from emulator.rows import offsets
from emulator.trace.schema import PerRank, RankNumber, RanksByAxis, Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Communicators:
    """All communicators of one group name. Communicator c has ``ranks[ptr[c]:ptr[c+1]]``, in the order of the group.

    ``of_rank`` is the communicator of each rank (-1: in none) and ``position`` its index there.
    """

    ptr: Ints
    ranks: Ints
    of_rank: Ints
    position: Ints

    @property
    def sizes(self) -> Ints:
        """Members of each communicator."""
        return np.diff(self.ptr)


def coordinate(trace: Trace, axis: str, ranks: Ints) -> Ints:
    """Coordinate on one axis of each of ``ranks``; the last axis varies fastest."""
    i = trace.mesh.axes.index(axis)
    return np.asarray(ranks // _stride(trace, i) % trace.mesh.shape[i], dtype=np.int64)


def _stride(trace: Trace, i: int) -> int:
    """Distance of two ranks that are neighbours on axis ``i``."""
    return int(np.prod(trace.mesh.shape[i + 1 :], dtype=np.int64))


def every_rank(trace: Trace) -> Ints:
    """All ranks, 0 to world size - 1."""
    return np.arange(trace.world_size, dtype=np.int64)


def sample(trace: Trace, axes: Collection[str]) -> Ints:
    """The ranks with coordinate 0 on all axes but ``axes``: they stand for all ranks where nothing else differs."""
    found = np.zeros(1, dtype=np.int64)
    for i, axis in enumerate(trace.mesh.axes):
        if axis in axes:
            steps = np.arange(trace.mesh.shape[i], dtype=np.int64) * _stride(trace, i)
            found = (found[:, None] + steps).ravel()
    return found


def program_of_rank(trace: Trace, ranks: Ints | None = None) -> Ints:
    """Index of the program that each of ``ranks`` (default: all) runs."""
    if isinstance(trace.ranks, RanksByAxis):
        ranks = every_rank(trace) if ranks is None else ranks
        return np.asarray(trace.ranks.programs, dtype=np.int64)[coordinate(trace, trace.ranks.axis, ranks)]
    counts = np.array([count for count, _ in trace.ranks], dtype=np.int64)
    programs = np.array([program for _, program in trace.ranks], dtype=np.int64)
    if ranks is None:
        return np.repeat(programs, counts)
    return np.asarray(programs[np.searchsorted(np.cumsum(counts), ranks, side="right")], dtype=np.int64)


def communicators(trace: Trace, name: str) -> Communicators:
    """The communicators of a group: one for every coordinate of the axes the group leaves out, or the listed ones."""
    group = trace.groups[name]
    world = trace.world_size
    if group.axes is not None:
        axes = [trace.mesh.axes.index(axis) for axis in group.axes]
        others = [i for i in range(len(trace.mesh.axes)) if i not in axes]
        grid = np.arange(world, dtype=np.int64).reshape(trace.mesh.shape)
        size = int(np.prod([trace.mesh.shape[i] for i in axes], dtype=np.int64))
        members = np.transpose(grid, [*others, *axes]).reshape(-1, size)
        ptr = np.arange(len(members) + 1, dtype=np.int64) * size
        ranks = members.ravel()
    else:
        lists = group.ranks or []
        ptr = offsets([len(ranks) for ranks in lists])
        ranks = np.array([rank for ranks in lists for rank in ranks], dtype=np.int64)
    of_rank = np.full(world, -1, dtype=np.int64)
    position = np.full(world, -1, dtype=np.int64)
    sizes = np.diff(ptr)
    of_rank[ranks] = np.repeat(np.arange(len(sizes)), sizes)
    position[ranks] = np.arange(len(ranks)) - np.repeat(ptr[:-1], sizes)
    return Communicators(ptr=ptr, ranks=ranks, of_rank=of_rank, position=position)


def group_sizes(trace: Trace, name: str, ranks: Ints) -> Ints:
    """Members of the communicator of a group that each of ``ranks`` is in."""
    axes = trace.groups[name].axes
    if axes is None:
        found = communicators(trace, name)
        return np.asarray(found.sizes[found.of_rank[ranks]])
    shape = dict(zip(trace.mesh.axes, trace.mesh.shape, strict=True))
    return np.full(len(ranks), prod(shape[axis] for axis in axes), dtype=np.int64)


def per_rank(trace: Trace, value: RankNumber, ranks: Ints | None = None) -> Floats:
    """A number of the trace as an array over ``ranks`` (default: all)."""
    if not isinstance(value, PerRank):
        return np.full(trace.world_size if ranks is None else len(ranks), float(value))
    ranks = every_rank(trace) if ranks is None else ranks
    table = np.asarray(value.values, dtype=np.float64)
    return np.asarray(table[tuple(coordinate(trace, axis, ranks) for axis in value.axes)], dtype=np.float64)


def peer_of_rank(trace: Trace, peer: int | dict[str, int], ranks: Ints | None = None) -> Ints:
    """The rank that ``peer`` means for ``ranks`` (default: all): itself a rank, or a mesh offset (offsets wrap)."""
    ranks = every_rank(trace) if ranks is None else ranks
    if isinstance(peer, int):
        return np.full(len(ranks), peer, dtype=np.int64)
    found = ranks.copy()
    for axis, offset in peer.items():
        i = trace.mesh.axes.index(axis)
        here = coordinate(trace, axis, ranks)
        found += ((here + offset) % trace.mesh.shape[i] - here) * _stride(trace, i)
    return found


def describe_ranks(ranks: Ints) -> str:
    """Ranks as ranges: ``0-7,16,18``."""
    if not len(ranks):
        return ""
    ordered = ranks if bool((np.diff(ranks) > 0).all()) else np.unique(ranks)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate([[0], breaks + 1])]
    lasts = ordered[np.concatenate([breaks, [len(ordered) - 1]])]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))
