"""From captures of ranks to one trace: communicators and peers named by mesh axis, equal programs kept once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator.capture.session import RankCapture
from emulator.capture.tape import GROUP_STREAM
from emulator.trace.schema import Group, Mesh, Meta, Op, PerRank, Program, RankNumber, RanksByAxis, Trace

Ints = NDArray[np.int64]


def merge(captures: Sequence[RankCapture], axes: dict[str, int], meta: Meta) -> Trace:
    """One trace of all ``captures``: of every rank of the mesh in order, or of one rank for each role.

    ``axes`` are the mesh's axes with their extents, slowest first. A role is a place on some of the axes, and its
    capture is that of the rank with this place and 0 elsewhere.
    """
    mesh = Mesh(axes=list(axes), shape=list(axes.values()))
    names = group_names(captures, mesh)
    programs: dict[bytes, int] = {}
    of_capture: list[int] = []
    kept: list[Program] = []
    for capture in captures:
        local = {key: names[tuple(members)][0] for key, members in capture.groups.items()}
        ops = [_renamed(op, local, capture.rank, mesh) for op in capture.ops]
        key = msgspec.json.encode(ops)
        if key not in programs:
            programs[key] = len(kept)
            kept.append(Program(ops=list(ops)))
        of_capture.append(programs[key])
    ranks = _assigned(np.array(of_capture)[_capture_of_rank(captures, mesh)], mesh)
    groups = dict(sorted(dict(names.values()).items()))
    return Trace(mesh=mesh, programs=kept, ranks=ranks, meta=meta, groups=groups)


# ---- which rank is what


def coordinates(rank: int | Ints, mesh: Mesh) -> tuple[Any, ...]:
    """Place of a rank (or of each of some) on the mesh."""
    return np.unravel_index(rank, mesh.shape)


def _capture_of_rank(captures: Sequence[RankCapture], mesh: Mesh) -> Ints:
    """Index of the capture that stands for each rank: the one at the same place on the axes that the captures span."""
    everyone = np.arange(int(np.prod(mesh.shape)))
    if len(captures) == 1:
        return np.zeros_like(everyone)
    where = coordinates(np.array([capture.rank for capture in captures]), mesh)
    spanned = [i for i, places in enumerate(where) if len(set(places.tolist())) > 1]
    index = {tuple(int(where[i][k]) for i in spanned): k for k in range(len(captures))}
    places = coordinates(everyone, mesh)
    return np.array([index[key] for key in zip(*(places[i].tolist() for i in spanned), strict=True)])


def _assigned(programs: Ints, mesh: Mesh) -> list[tuple[int, int]] | RanksByAxis:
    """Which rank runs which program, in the shortest form that says it."""
    if len(np.unique(programs)) == 1:
        return [(len(programs), int(programs[0]))]
    places = coordinates(np.arange(len(programs)), mesh)
    for axis, extent, place in zip(mesh.axes, mesh.shape, places, strict=True):
        first = [int(programs[np.argmax(place == i)]) for i in range(extent)]
        if np.array_equal(np.array(first)[place], programs):
            return RanksByAxis(axis=axis, programs=first)
    starts = np.flatnonzero(np.diff(programs, prepend=-1))
    counts = np.diff([*starts, len(programs)])
    return [(int(count), int(programs[start])) for start, count in zip(starts, counts, strict=True)]


def per_rank(values: Sequence[int], captures: Sequence[RankCapture], axes: dict[str, int]) -> RankNumber:
    """A number that each capture has one of, as the trace says it: one number, or a table over the axes it needs."""
    if len(set(values)) == 1:
        return values[0]
    mesh = Mesh(axes=list(axes), shape=list(axes.values()))
    table = np.array(values)[_capture_of_rank(captures, mesh)].reshape(mesh.shape)
    needed = [i for i in range(table.ndim) if (np.take(table, [0], axis=i) != table).any()]
    picked = table[tuple(slice(None) if i in needed else 0 for i in range(table.ndim))]
    return PerRank(axes=[mesh.axes[i] for i in needed], values=picked.tolist())


# ---- names


def _renamed(op: Op, names: dict[str, str], rank: int, mesh: Mesh) -> Op:
    changes: dict[str, Any] = {}
    if op.group:
        changes["group"] = names[op.group]
    if op.stream.startswith(GROUP_STREAM):
        changes["stream"] = names[op.stream.removeprefix(GROUP_STREAM)]
    if isinstance(op.peer, int):
        changes["peer"] = _offset(rank, op.peer, mesh)
    return msgspec.structs.replace(op, **changes) if changes else op


def _offset(rank: int, peer: int, mesh: Mesh) -> dict[str, int]:
    """How to get from ``rank`` to ``peer`` along the axes, the short way round."""
    steps = {}
    for axis, extent, here, there in zip(
        mesh.axes, mesh.shape, coordinates(rank, mesh), coordinates(peer, mesh), strict=True
    ):
        step = int(there - here) % extent
        if step:
            steps[axis] = step - extent if 2 * step > extent else step
    return steps or {mesh.axes[-1]: 0}


def group_names(captures: Sequence[RankCapture], mesh: Mesh) -> dict[tuple[int, ...], tuple[str, Group]]:
    """Name and definition of each communicator: the mesh axes it spans, or, if it spans none, its ranks."""
    used = {tuple(members): capture.rank for capture in captures for members in capture.groups.values()}
    names: dict[tuple[int, ...], tuple[str, Group]] = {}
    odd: list[tuple[int, ...]] = []
    for members, rank in used.items():
        spanned = _axes_of(members, rank, mesh)
        if spanned is None:
            odd.append(members)
        else:
            names[members] = (".".join(spanned) or "self", Group(axes=spanned))
    for number, together in enumerate(_disjoint(odd)):
        group = Group(ranks=[list(members) for members in together])
        names.update((members, (f"ranks{number}", group)) for members in together)
    return names


def _axes_of(members: tuple[int, ...], rank: int, mesh: Mesh) -> list[str] | None:
    """The axes along which ``members`` run through ``rank``, in mesh order; None if they are no such set of ranks."""
    grid = np.arange(int(np.prod(mesh.shape))).reshape(mesh.shape)
    here = coordinates(rank, mesh)
    wide = [i for i, extent in enumerate(mesh.shape) if extent > 1]
    for count in range(len(wide) + 1):
        for chosen in combinations(wide, count):
            line = grid[tuple(slice(None) if i in chosen else here[i] for i in range(len(mesh.shape)))]
            if line.size == len(members) and np.array_equal(np.ravel(line), members):
                return [mesh.axes[i] for i in chosen]
    return None


def _disjoint(groups: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Groups put together so that no rank is twice in one set: the members of one set are one group of the trace."""
    sets: list[list[tuple[int, ...]]] = []
    for members in sorted(groups, key=lambda m: (len(m), m)):
        for together in sets:
            if len(together[0]) == len(members) and all(set(members).isdisjoint(other) for other in together):
                together.append(members)
                break
        else:
            sets.append([members])
    return sets
