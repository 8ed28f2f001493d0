"""From captures of ranks to one trace: communicators named by mesh axis, equal programs kept once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np

from emulator.capture.session import RankCapture
from emulator.trace.schema import Group, Mesh, Meta, Op, Program, Trace

GROUP_STREAM = "group:"  # prefix of a stream that belongs to a communicator, until that has its name


def merge(captures: Sequence[RankCapture], axes: dict[str, int], meta: Meta) -> Trace:
    """One trace of all ``captures``: either every rank of the mesh in order, or one that stands for all ranks alike.

    ``axes`` are the mesh's axes with their extents, slowest first; ``meta`` gets the recorder's notes.
    """
    mesh = Mesh(axes=list(axes), shape=list(axes.values()))
    names = group_names(captures, mesh)
    groups: dict[str, Group] = dict(names.values())
    programs: dict[bytes, int] = {}
    ranks: list[tuple[int, int]] = []
    kept: list[Program] = []
    for capture in captures:
        local = {key: names[tuple(members)][0] for key, members in capture.groups.items()}
        ops = [_renamed(op, local) for op in capture.ops]
        key = msgspec.json.encode(ops)
        if key not in programs:
            programs[key] = len(kept)
            kept.append(Program(ops=list(ops)))
        program = programs[key]
        if ranks and ranks[-1][1] == program:
            ranks[-1] = (ranks[-1][0] + 1, program)
        else:
            ranks.append((1, program))
    if len(captures) == 1:
        ranks = [(int(np.prod(mesh.shape)), 0)]
    return Trace(mesh=mesh, programs=kept, ranks=ranks, meta=meta, groups=dict(sorted(groups.items())))


def _renamed(op: Op, names: dict[str, str]) -> Op:
    changes: dict[str, Any] = {}
    if op.group:
        changes["group"] = names[op.group]
    if op.stream.startswith(GROUP_STREAM):
        changes["stream"] = names[op.stream.removeprefix(GROUP_STREAM)]
    return msgspec.structs.replace(op, **changes) if changes else op


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
    here = np.unravel_index(rank, mesh.shape)
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
