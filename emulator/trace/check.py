"""Faults of a trace that can be seen without looking across ranks; those that need it are in :mod:`.match`.

A fault is a place and a reason. ``emu trace check`` lists them all, ``load`` refuses a trace at the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from emulator.errors import InputError
from emulator.trace import io
from emulator.trace.expand import TAGS, Rows, instance_value, rows, templates
from emulator.trace.fault import Fault
from emulator.trace.match import match_faults
from emulator.trace.schema import DTYPE_BYTES, BlockUse, Op, PerRank, RankNumber, RanksByAxis, Trace

_NUMBERS = ("host_seconds", "flops", "bytes_read", "bytes_written", "duration", "bytes_in", "bytes_out", "bytes")
_MAX_FAULTS = 200


def load(path: Path | str) -> Trace:
    """Read a trace and refuse it if anything is wrong: InputError names file, place and reason of the first fault."""
    trace = io.read(path)
    for fault in faults(trace, str(path)):
        raise InputError(fault.reason, source=str(path), place=fault.place)
    return trace


def faults(trace: Trace, source: str = "") -> Iterator[Fault]:
    """All faults, the cheap and local ones first; later checks run only where earlier ones passed."""
    for check in (_mesh_faults, _group_faults, _rank_faults, _op_faults):
        found = False
        for fault in check(trace):
            found = True
            yield fault
        if found:
            return
    try:
        unrolled = [rows(trace, p, source) for p in range(len(trace.programs))]
    except InputError as error:
        yield Fault(error.place, error.reason)
        return
    cyclic = False
    for p, program in enumerate(unrolled):
        for fault in _cycle_faults(trace, p, program):
            cyclic = True
            yield fault
    if not cyclic:
        yield from match_faults(trace, unrolled)


def _mesh_faults(trace: Trace) -> Iterator[Fault]:
    axes, shape = trace.mesh.axes, trace.mesh.shape
    if len(axes) != len(shape):
        yield Fault("mesh", f"{len(axes)} axes but {len(shape)} sizes")
    if len(set(axes)) != len(axes):
        yield Fault("mesh.axes", f"an axis is named twice: {', '.join(axes)}")
    for axis, size in zip(axes, shape, strict=False):
        if size < 1:
            yield Fault("mesh.shape", f"axis {axis!r} has size {size}; at least 1 is needed")
    if not trace.programs:
        yield Fault("programs", "there is no program")


def _group_faults(trace: Trace) -> Iterator[Fault]:
    for name, group in trace.groups.items():
        place = f"groups.{name}"
        if (group.axes is None) == (group.ranks is None):
            yield Fault(place, "give either axes or ranks")
        elif group.axes is not None:
            for axis in group.axes:
                if axis not in trace.mesh.axes:
                    yield Fault(place, f"axis {axis!r} is not on the mesh ({', '.join(trace.mesh.axes)})")
            if len(set(group.axes)) != len(group.axes):
                yield Fault(place, "an axis is named twice")
        else:
            listed = [rank for ranks in group.ranks or [] for rank in ranks]
            for rank in listed:
                if not 0 <= rank < trace.world_size:
                    yield Fault(place, f"rank {rank} is outside the world of {trace.world_size}")
            for rank in sorted({rank for rank in listed if listed.count(rank) > 1} if len(listed) < 4096 else ()):
                yield Fault(place, f"rank {rank} is listed twice")
            if len(listed) >= 4096 and len(set(listed)) != len(listed):
                yield Fault(place, "a rank is listed twice")
            if any(not ranks for ranks in group.ranks or []):
                yield Fault(place, "a communicator without ranks")


def _rank_faults(trace: Trace) -> Iterator[Fault]:
    known = len(trace.programs)
    if isinstance(trace.ranks, RanksByAxis):
        axis, used = trace.ranks.axis, trace.ranks.programs
        if axis not in trace.mesh.axes:
            yield Fault("ranks.axis", f"axis {axis!r} is not on the mesh ({', '.join(trace.mesh.axes)})")
        elif len(used) != (size := trace.mesh.shape[trace.mesh.axes.index(axis)]):
            yield Fault("ranks.programs", f"{len(used)} programs for axis {axis!r} of size {size}")
    else:
        used = [program for _, program in trace.ranks]
        if any(count < 1 for count, _ in trace.ranks):
            yield Fault("ranks", "a count below 1")
        elif (total := sum(count for count, _ in trace.ranks)) != trace.world_size:
            yield Fault("ranks", f"{total} ranks have a program but the mesh has {trace.world_size}")
    for program in used:
        if not 0 <= program < known:
            yield Fault("ranks", f"program {program} does not exist (there are {known})")


def _op_faults(trace: Trace) -> Iterator[Fault]:
    for name, body in trace.blocks.items():
        yield from _list_faults(trace, f"blocks.{name}", body)
    for p, program in enumerate(trace.programs):
        place = f"programs[{p}]"
        yield from _list_faults(trace, place, [item for item in program.ops if isinstance(item, Op)])
        for use in program.ops:
            if isinstance(use, BlockUse):
                yield from _use_faults(trace, place, use)


def _use_faults(trace: Trace, place: str, use: BlockUse) -> Iterator[Fault]:
    if use.block not in trace.blocks:
        yield Fault(place, f"uses unknown block {use.block!r}; known: {', '.join(trace.blocks) or 'none'}")
    if use.repeat < 1:
        yield Fault(place, f"block {use.block!r}: repeat must be at least 1, not {use.repeat}")
    for key, value in use.set.items():
        if key not in TAGS:
            yield Fault(place, f"block {use.block!r}: set.{key} is not one of {', '.join(TAGS)}")
        try:
            instance_value(value)
        except ValueError:
            yield Fault(place, f'block {use.block!r}: set.{key} is {value!r}; write an integer or "base+step"')


def _list_faults(trace: Trace, place: str, ops: list[Op]) -> Iterator[Fault]:
    seen: set[int] = set()
    for op in ops:
        here = f"{place} op {op.id}"
        if op.id in seen:
            yield Fault(here, "the id is used twice")
        seen.add(op.id)
        yield from _number_faults(trace, here, op)
        if op.dtype and op.dtype not in DTYPE_BYTES:
            yield Fault(here, f"unknown dtype {op.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        elif op.kind in ("collective", "send", "recv"):
            yield from _message_faults(trace, here, op)


def _number_faults(trace: Trace, here: str, op: Op) -> Iterator[Fault]:
    for field in _NUMBERS:
        value = getattr(op, field)
        if value is None or value == 0:
            continue
        if isinstance(value, PerRank):
            reason = _per_rank_reason(trace, value)
            if reason:
                yield Fault(here, f"{field}: {reason}")
                continue
            smallest = float(np.min(value.values))
        else:
            smallest = float(value)
        if not math.isfinite(smallest):
            yield Fault(here, f"{field} is not a finite number")
        elif smallest < 0:
            yield Fault(here, f"{field} is negative ({smallest:g})")


def _per_rank_reason(trace: Trace, value: PerRank) -> str:
    for axis in value.axes:
        if axis not in trace.mesh.axes:
            return f"axis {axis!r} is not on the mesh ({', '.join(trace.mesh.axes)})"
    expected = tuple(trace.mesh.shape[trace.mesh.axes.index(axis)] for axis in value.axes)
    try:
        table = np.asarray(value.values, dtype=np.float64)
    except (ValueError, TypeError):
        return "values are not a regular table of numbers"
    return "" if table.shape == expected else f"values have shape {table.shape}, the axes {expected}"


def _message_faults(trace: Trace, here: str, op: Op) -> Iterator[Fault]:
    """Partners exist, and what is moved is a whole number of elements."""
    partner = _collective_reason(trace, op) if op.kind == "collective" else _peer_reason(trace, op)
    if partner:
        yield Fault(here, partner)
    if partner or op.collective == "barrier":
        return
    has_splits = op.splits_in is not None or op.splits_out is not None
    if not has_splits and not any(isinstance(v, PerRank) or v for v in (op.bytes_in, op.bytes_out, op.bytes)):
        yield Fault(here, f"{op.collective or op.kind} moves no bytes")
    if not op.dtype:
        yield Fault(here, "communication needs a dtype")
        return
    width = DTYPE_BYTES[op.dtype]
    for field in ("bytes_in", "bytes_out"):
        for value in _values(getattr(op, field)):
            if value % width:
                yield Fault(here, f"{field} = {value:g} is not a whole number of {op.dtype} elements ({width} bytes)")
                break


def _collective_reason(trace: Trace, op: Op) -> str:
    if op.collective is None:
        return "a collective without its kind (collective: all_reduce, all_gather, ...)"
    if op.group not in trace.groups:
        return f"unknown group {op.group!r}; known: {', '.join(trace.groups) or 'none'}"
    return ""


def _peer_reason(trace: Trace, op: Op) -> str:
    if op.group and op.group not in trace.groups:
        return f"unknown group {op.group!r}; known: {', '.join(trace.groups) or 'none'}"
    if op.peer is None:
        return f"a {op.kind} without a peer"
    if isinstance(op.peer, int):
        inside = 0 <= op.peer < trace.world_size
        return "" if inside else f"peer {op.peer} is outside the world of {trace.world_size}"
    unknown = [axis for axis in op.peer if axis not in trace.mesh.axes]
    return f"peer axis {unknown[0]!r} is not on the mesh ({', '.join(trace.mesh.axes)})" if unknown else ""


def _values(value: RankNumber) -> list[float]:
    return np.ravel(value.values).tolist() if isinstance(value, PerRank) else [float(value)]


def _cycle_faults(trace: Trace, p: int, program: Rows) -> Iterator[Fault]:
    """Dependencies on earlier rows cannot form a cycle; only if one points forward the graph has to be walked."""
    count = len(program)
    owner = np.repeat(np.arange(count), np.diff(program.deps_ptr))
    if not len(owner) or bool((program.deps < owner).all()):
        return
    ops = templates(trace).ops
    sources, targets = [program.deps], [owner]
    streams: dict[str, list[int]] = {}
    for row, template in enumerate(program.template.tolist()):
        if ops[template].kind not in ("send", "recv", "host_sync"):
            streams.setdefault(ops[template].stream, []).append(row)
    for members in streams.values():
        sources.append(np.array(members[:-1], dtype=np.int64))
        targets.append(np.array(members[1:], dtype=np.int64))
    source, target = np.concatenate(sources), np.concatenate(targets)
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    ptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=count))])
    waiting = np.bincount(target, minlength=count)
    ready = np.flatnonzero(waiting == 0).tolist()
    while ready:
        row = ready.pop()
        for other in target[ptr[row] : ptr[row + 1]].tolist():
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    stuck = np.flatnonzero(waiting > 0)
    if len(stuck):
        names = ", ".join(str(ops[program.template[row]].id) for row in stuck[:6].tolist())
        yield Fault(f"programs[{p}] op {ops[program.template[stuck[0]]].id}", f"a cycle of dependencies (ops {names})")
