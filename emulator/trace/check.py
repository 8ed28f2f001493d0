"""Faults of a trace that can be seen without looking across ranks; those that need it are in :mod:`.match` and
:mod:`.pairs`, those of single ops in :mod:`.check_op`, ops that wait for each other in :mod:`.cycles`.

A fault is a place and a reason. ``emu trace check`` lists them all, ``load`` refuses a trace at the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from emulator.errors import InputError
from emulator.trace import io
from emulator.trace.check_op import number_reason, op_faults
from emulator.trace.cycles import cycle_faults
from emulator.trace.expand import TAGS, instance_value, length, templates, unroll
from emulator.trace.fault import Fault
from emulator.trace.match import Sequences, collective_faults
from emulator.trace.pairs import pair_faults
from emulator.trace.repeats import shorten
from emulator.trace.schema import MAX_RANKS, BlockUse, Op, RanksByAxis, Trace

_MAX_ROWS = 50_000_000  # executions of one program, written out
_MAX_TAG = 2**53
_KEPT_INSTANCES = 16


def load(path: Path | str, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read a trace and refuse it if anything is wrong: InputError names file, place and reason of the first fault.

    ``progress`` is told bytes read and bytes in all while a large file is read.
    """
    trace = io.read(path, progress)
    for fault in faults(trace, str(path)):
        raise InputError(fault.reason, source=str(path), place=fault.place)
    return trace


def faults(trace: Trace, source: str = "") -> Iterator[Fault]:
    """All faults, the cheap and local ones first; later checks run only where earlier ones passed."""
    for check in (_mesh_faults, _meta_faults, _group_faults, _rank_faults, _op_faults, _length_faults):
        found = False
        for fault in check(trace):
            found = True
            yield fault
        if found:
            return
    trace, _ = shorten(trace, _KEPT_INSTANCES)  # what all programs repeat alike agrees or not in its first instances
    try:
        unrolled = unroll(trace, source)
    except InputError as error:
        yield Fault(error.place, error.reason)
        return
    ops = templates(trace).ops
    cyclic = False
    for p, program in enumerate(unrolled):
        for fault in cycle_faults(ops, trace.program_place(p), program):
            cyclic = True
            yield fault
    if not cyclic:
        view = Sequences(trace, unrolled, ops)
        yield from collective_faults(view)
        yield from pair_faults(view)


def _mesh_faults(trace: Trace) -> Iterator[Fault]:
    axes, shape = trace.mesh.axes, trace.mesh.shape
    if len(axes) != len(shape):
        yield Fault("mesh", f"{len(axes)} axes but {len(shape)} sizes")
    if len(set(axes)) != len(axes):
        yield Fault("mesh.axes", f"an axis is named twice: {', '.join(axes)}")
    for axis, size in zip(axes, shape, strict=False):
        if size < 1:
            yield Fault("mesh.shape", f"axis {axis!r} has size {size}; at least 1 is needed")
    if trace.world_size > MAX_RANKS:
        yield Fault("mesh.shape", f"{trace.world_size:,} ranks; at most {MAX_RANKS:,} can be replayed")
    if not trace.programs:
        yield Fault("programs", "there is no program")


def _meta_faults(trace: Trace) -> Iterator[Fault]:
    for kind, size in trace.meta.resident.items():
        if reason := number_reason(trace, size):
            yield Fault(f"meta.resident.{kind}", reason)


def _group_faults(trace: Trace) -> Iterator[Fault]:
    for name, group in trace.groups.items():
        place = f"groups.{name}"
        if not name:
            yield Fault("groups", "a group without a name")
        if (group.axes is None) == (group.ranks is None):
            yield Fault(place, "give either axes or ranks")
        elif group.axes is not None:
            for axis in group.axes:
                if axis not in trace.mesh.axes:
                    yield Fault(place, f"axis {axis!r} is not on the mesh ({', '.join(trace.mesh.axes)})")
            if len(set(group.axes)) != len(group.axes):
                yield Fault(place, "an axis is named twice")
        elif not group.ranks or not all(group.ranks):
            yield Fault(place, "a communicator without ranks")
        else:
            listed = np.sort(np.concatenate([np.array(ranks, dtype=np.int64) for ranks in group.ranks]))
            for rank in listed[(listed < 0) | (listed >= trace.world_size)][:10].tolist():
                yield Fault(place, f"rank {rank} is outside the world of {trace.world_size}")
            for rank in np.unique(listed[1:][listed[1:] == listed[:-1]])[:10].tolist():
                yield Fault(place, f"rank {rank} is listed twice")


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
    checked: set[int] = set()  # a reader keeps equal ops of different ranks as one object
    for name, body in trace.blocks.items():
        if not name:
            yield Fault("blocks", "a block without a name")
        yield from _list_faults(trace, f"blocks.{name}", body, name, checked)
    for p, program in enumerate(trace.programs):
        place = trace.program_place(p)
        own = [item for item in program.ops if isinstance(item, Op)]
        yield from _list_faults(trace, place, own, "", checked)
        for use in program.ops:
            if isinstance(use, BlockUse):
                yield from _use_faults(trace, place, use)


def _list_faults(trace: Trace, place: str, ops: list[Op], home: str, checked: set[int]) -> Iterator[Fault]:
    seen: set[int] = set()
    for op in ops:
        here = f"{place} op {op.id}"
        if op.id in seen:
            yield Fault(here, "the id is used twice")
        seen.add(op.id)
        if id(op) not in checked:
            yield from op_faults(trace, here, op, home)
    checked.update(map(id, ops if not home else ()))


def _use_faults(trace: Trace, place: str, use: BlockUse) -> Iterator[Fault]:
    if use.block not in trace.blocks:
        yield Fault(place, f"uses unknown block {use.block!r}; known: {', '.join(trace.blocks) or 'none'}")
    if use.repeat < 1:
        yield Fault(place, f"block {use.block!r}: repeat must be at least 1, not {use.repeat}")
    for key, value in use.set.items():
        if key not in TAGS:
            yield Fault(place, f"block {use.block!r}: set.{key} is not one of {', '.join(TAGS)}")
        try:
            base, step = instance_value(value)
        except ValueError:
            yield Fault(place, f'block {use.block!r}: set.{key} is {value!r}; write an integer or "base+step"')
            continue
        if not all(0 <= end <= _MAX_TAG for end in (base, base + step * (use.repeat - 1))) or abs(step) > _MAX_TAG:
            yield Fault(
                place, f"block {use.block!r}: set.{key} = {value!r} leaves the range of tags in {use.repeat} instances"
            )


def _length_faults(trace: Trace) -> Iterator[Fault]:
    for p, program in enumerate(trace.programs):
        if (count := length(trace, program)) > _MAX_ROWS:
            yield Fault(
                f"programs[{p}]", f"{count:,} executions with all repeats; at most {_MAX_ROWS:,} can be replayed"
            )
