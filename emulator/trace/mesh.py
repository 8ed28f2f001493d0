"""Who is who: coordinates of ranks, members of groups, the program and the numbers of each rank.

Everything is an array over ranks, so that a mesh of a million ranks costs a few array operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def coordinates(trace: Trace) -> Ints:
    """Coordinates of every rank, shape (world, axes); the last axis varies fastest."""
    shape = tuple(trace.mesh.shape)
    grid = np.indices(shape).reshape(len(shape), -1).T if shape else np.zeros((1, 0))
    return np.ascontiguousarray(grid, dtype=np.int64)


def program_of_rank(trace: Trace) -> Ints:
    """Index of the program that each rank runs, shape (world,)."""
    if isinstance(trace.ranks, RanksByAxis):
        axis = trace.mesh.axes.index(trace.ranks.axis)
        return np.asarray(trace.ranks.programs, dtype=np.int64)[coordinates(trace)[:, axis]]
    counts = np.array([count for count, _ in trace.ranks], dtype=np.int64)
    programs = np.array([program for _, program in trace.ranks], dtype=np.int64)
    return np.repeat(programs, counts)


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
        ptr = np.concatenate([[0], np.cumsum([len(ranks) for ranks in lists])]).astype(np.int64)
        ranks = np.array([rank for ranks in lists for rank in ranks], dtype=np.int64)
    of_rank = np.full(world, -1, dtype=np.int64)
    position = np.full(world, -1, dtype=np.int64)
    sizes = np.diff(ptr)
    of_rank[ranks] = np.repeat(np.arange(len(sizes)), sizes)
    position[ranks] = np.arange(len(ranks)) - np.repeat(ptr[:-1], sizes)
    return Communicators(ptr=ptr, ranks=ranks, of_rank=of_rank, position=position)


def per_rank(trace: Trace, value: RankNumber) -> Floats:
    """A number of the trace as an array over ranks, shape (world,)."""
    if not isinstance(value, PerRank):
        return np.full(trace.world_size, float(value))
    axes = [trace.mesh.axes.index(axis) for axis in value.axes]
    table = np.asarray(value.values, dtype=np.float64)
    where = coordinates(trace)
    return np.asarray(table[tuple(where[:, axis] for axis in axes)], dtype=np.float64)


def peer_of_rank(trace: Trace, peer: int | dict[str, int]) -> Ints:
    """The rank that ``peer`` means for every rank: itself a rank, or an offset on the mesh (offsets wrap)."""
    if isinstance(peer, int):
        return np.full(trace.world_size, peer, dtype=np.int64)
    where = coordinates(trace).copy()
    for axis, offset in peer.items():
        i = trace.mesh.axes.index(axis)
        where[:, i] = (where[:, i] + offset) % trace.mesh.shape[i]
    strides = np.cumprod([1, *trace.mesh.shape[:0:-1]], dtype=np.int64)[::-1]
    return np.asarray(where @ strides, dtype=np.int64)


def describe_ranks(ranks: Ints) -> str:
    """Ranks as ranges: ``0-7,16,18``."""
    ordered = np.unique(ranks)
    if not len(ordered):
        return ""
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate([[0], breaks + 1])]
    lasts = ordered[np.concatenate([breaks, [len(ordered) - 1]])]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))
