"""Unrolling: a program with blocks and repeats becomes rows, one per execution, with dependencies as row numbers.

Only indices are unrolled. The ops themselves (*templates*) are shared by all rows that stand for them, so a
program of a million rows still has as many Python objects as the trace has lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.rows import by_value
from emulator.trace.schema import BlockUse, Op, Program, Ref, Trace

Ints = NDArray[np.int64]
TAGS = ("layer", "microbatch", "stage")
_PER_INSTANCE = re.compile(r"^\s*(-?\d+)\s*([+-]\s*-?\d+)\s*$")


@dataclass(frozen=True)
class Templates:
    """Every op of a trace once: those of the blocks first, then each program's own. ``block_start`` is by block name,
    ``position`` gives the place of an id in its block."""

    ops: list[Op]
    block_start: dict[str, int]
    program_start: list[int]
    position: dict[str, dict[int, int]]


@dataclass(frozen=True)
class Rows:
    """One program unrolled. Row i executes ``templates.ops[template[i]]`` and depends on rows
    ``deps[deps_ptr[i]:deps_ptr[i+1]]``. ``instance`` numbers block instances (-1: the program's own level).
    Tags an op does not have are -1. ``void_deps`` counts references that reach before a block's first instance.
    """

    template: Ints
    deps_ptr: Ints
    deps: Ints
    instance: Ints
    tags: dict[str, Ints]
    void_deps: int

    def __len__(self) -> int:
        return len(self.template)


def templates(trace: Trace) -> Templates:
    """List the distinct ops of a trace. Peers that are mesh offsets come in one form, so that on an axis of length 2
    one step ahead and one back are the same peer."""
    ops: list[Op] = []
    block_start = {}
    for name, body in trace.blocks.items():
        block_start[name] = len(ops)
        ops.extend(body)
    program_start = []
    for program in trace.programs:
        program_start.append(len(ops))
        ops.extend(item for item in program.ops if isinstance(item, Op))
    extent = dict(zip(trace.mesh.axes, trace.mesh.shape, strict=False))
    for i, op in enumerate(ops):
        if type(op.peer) is dict:
            peer = {axis: offset % extent[axis] for axis, offset in sorted(op.peer.items()) if offset % extent[axis]}
            if peer != op.peer:
                ops[i] = msgspec.structs.replace(op, peer=peer)
    position = {name: {op.id: j for j, op in enumerate(body)} for name, body in trace.blocks.items()}
    return Templates(ops=ops, block_start=block_start, program_start=program_start, position=position)


def instance_value(value: int | str) -> tuple[int, int]:
    """``"base+step"`` of a block use as (base, step); an integer is itself in every instance. ValueError otherwise."""
    if isinstance(value, int):
        return value, 0
    match = _PER_INSTANCE.match(value)
    if match is None:
        return int(value), 0
    return int(match[1]), int(match[2].replace(" ", "").replace("+-", "-").replace("--", ""))


class _Unroller:
    """State while one program is unrolled: where the instances of each block lie, and the edges found so far."""

    def __init__(self, trace: Trace, source: str, index: int, known: Templates) -> None:
        self.trace = trace
        self.source = source
        self.program = index
        self.position = known.position
        self.starts: dict[str, Ints] = {name: np.empty(0, dtype=np.int64) for name in trace.blocks}
        self.own_row: dict[int, int] = {}
        self.edges: list[tuple[Ints, Ints]] = []
        self.own_edges: tuple[list[int], list[int]] = ([], [])
        self.void = 0

    def fail(self, place: str, reason: str) -> InputError:
        return InputError(reason, source=self.source, place=f"{self.trace.program_place(self.program)} {place}".strip())

    def local(self, block: str, op_id: object, place: str) -> int:
        try:
            return self.position[block][op_id]  # type: ignore[index]
        except KeyError:
            raise self.fail(place, f"depends on op {op_id}, which is not in block {block!r}") from None

    def earlier(self, ref: list[int | str], place: str) -> tuple[int, int | str, str | None]:
        if len(ref) not in (2, 3) or not isinstance(ref[0], int) or ref[0] < 0:
            raise self.fail(place, f"a reference is id, [k, id] or [k, id, block] with k >= 0, not {ref}")
        block = ref[2] if len(ref) == 3 else None
        if block is not None and (not isinstance(block, str) or (block and block not in self.position)):
            raise self.fail(place, f"refers to unknown block {block!r}")
        return ref[0], ref[1], block

    def targets(self, ref: Ref, block: str | None, first: Ints, place: str) -> Ints:
        """Rows that ``ref`` means in each of the instances that start at rows ``first`` (-1: before the first)."""
        if isinstance(ref, int):
            if block is not None:
                return first + self.local(block, ref, place)
            return np.full(len(first), self.own(ref, place))
        back, op_id, other = self.earlier(ref, place)
        if other == "":
            return np.full(len(first), self.own(op_id, place))
        if other is None and block is None:
            raise self.fail(place, f"{ref}: only ops of a block have instances; name the block: [k, id, block]")
        name = block if other is None else other
        assert name is not None
        offset = self.local(name, op_id, place)
        starts = self.starts[name]
        if name == block:  # this block: instances before each of ours (ours are the last of `starts`)
            where = np.arange(len(starts) - len(first), len(starts)) - back
        else:
            where = np.full(len(first), len(starts) - 1 - back)
        inside = where >= 0
        rows = np.full(len(first), -1, dtype=np.int64)
        rows[inside] = starts[where[inside]] + offset
        return rows

    def own(self, op_id: object, place: str) -> int:
        try:
            return self.own_row[op_id]  # type: ignore[index]
        except KeyError:
            raise self.fail(place, f"depends on op {op_id}, which does not exist at the program's level") from None

    def depend_own(self, op: Op, row: int) -> None:
        """Dependencies of an op at the program's own level, one row: plain lists are faster than arrays of one."""
        place = f"op {op.id}"
        for ref in op.deps:
            if isinstance(ref, int):
                target = self.own(ref, place)
            else:
                target = int(self.targets(ref, None, np.zeros(1, np.int64), place)[0])
            if target < 0:
                self.void += 1
            else:
                self.own_edges[0].append(row)
                self.own_edges[1].append(target)

    def depend(self, op: Op, rows: Ints, block: str, first: Ints) -> None:
        """Dependencies of a block's op in all instances of one use."""
        place = f"block {block!r} op {op.id}"
        for ref in op.deps:
            targets = self.targets(ref, block, first, place)
            known = targets >= 0
            self.void += int(len(known) - known.sum())
            self.edges.append((rows[known], targets[known]))


def unroll(trace: Trace, source: str = "") -> list[Rows]:
    """Unroll all programs. Raises InputError on references that lead nowhere."""
    known = templates(trace)
    return [rows(trace, p, source, known) for p in range(len(trace.programs))]


def used(template: Ints) -> Ints:
    """The distinct templates among many, sorted."""
    if len(template) and template.max() < 8 * len(template):
        return np.flatnonzero(np.bincount(template))  # counting beats sorting where rows repeat a few templates
    return np.unique(template)


def length(trace: Trace, program: Program) -> int:
    """Number of rows of a program, without unrolling it."""
    return sum(1 if isinstance(item, Op) else item.repeat * len(trace.blocks[item.block]) for item in program.ops)


def rows(trace: Trace, index: int, source: str = "", known: Templates | None = None) -> Rows:
    """Unroll program ``index`` (``known``: the templates, to share between programs). Raises InputError on references
    that lead nowhere."""
    program = trace.programs[index]
    known = known or templates(trace)
    unroller = _Unroller(trace, source, index, known)
    place = 0
    for item in program.ops:  # a program's own ops may be referred to before they are reached
        if isinstance(item, Op):
            unroller.own_row[item.id] = place
            place += 1
        else:
            place += item.repeat * len(_body(trace, item, unroller))
    return _unroll(trace, program, known, index, unroller)


def _body(trace: Trace, use: BlockUse, unroller: _Unroller) -> list[Op]:
    if use.block not in trace.blocks:
        raise unroller.fail("", f"uses unknown block {use.block!r}")
    if use.repeat < 1:
        raise unroller.fail(f"block {use.block!r}", f"repeat must be at least 1, not {use.repeat}")
    return trace.blocks[use.block]


def _unroll(trace: Trace, program: Program, known: Templates, index: int, unroller: _Unroller) -> Rows:
    template: list[Ints] = []
    instance: list[Ints] = []
    tags: dict[str, list[Ints]] = {tag: [] for tag in TAGS}
    own_template = known.program_start[index]
    row = instances = 0
    for is_block, items in groupby(program.ops, key=lambda item: isinstance(item, BlockUse)):
        if not is_block:
            own = [item for item in items if isinstance(item, Op)]
            for k, op in enumerate(own):
                unroller.depend_own(op, row + k)
            template.append(np.arange(own_template, own_template + len(own), dtype=np.int64))
            instance.append(np.full(len(own), -1, dtype=np.int64))
            for tag in TAGS:
                tags[tag].append(_recorded_tag(own, tag))
            own_template += len(own)
            row += len(own)
            continue
        for use in items:
            assert isinstance(use, BlockUse)
            body = _body(trace, use, unroller)
            if not body:  # nothing happens, however often
                continue
            count = use.repeat
            first = row + np.arange(count, dtype=np.int64) * len(body)
            unroller.starts[use.block] = np.concatenate([unroller.starts[use.block], first])
            for j, op in enumerate(body):
                unroller.depend(op, first + j, use.block, first)
            template.append(np.tile(np.arange(len(body)) + known.block_start[use.block], count))
            instance.append(np.repeat(np.arange(instances, instances + count), len(body)))
            for tag in TAGS:
                tags[tag].append(_instance_tag(use, body, tag, unroller))
            instances += count
            row += count * len(body)
    unroller.edges.append((np.array(unroller.own_edges[0], np.int64), np.array(unroller.own_edges[1], np.int64)))
    edge_rows = np.concatenate([np.empty(0, np.int64), *(a for a, _ in unroller.edges)])
    edge_deps = np.concatenate([np.empty(0, np.int64), *(b for _, b in unroller.edges)])
    deps_ptr, order = by_value(edge_rows, row)
    empty = np.empty(0, np.int64)
    return Rows(
        template=np.concatenate([empty, *template]),
        deps_ptr=deps_ptr,
        deps=edge_deps[order],
        instance=np.concatenate([empty, *instance]),
        tags={tag: _joined(columns, row) for tag, columns in tags.items()},
        void_deps=unroller.void,
    )


def _no_tag(count: int) -> Ints:
    """-1 for every row, without the memory: most programs lack most tags."""
    return np.broadcast_to(np.int64(-1), (count,))


def _joined(columns: list[Ints], count: int) -> Ints:
    """The columns of a tag, one after the other."""
    if all(column.strides == (0,) for column in columns):
        return _no_tag(count)
    return np.concatenate(columns)


def _recorded_tag(ops: list[Op], tag: str) -> Ints:
    values = [getattr(op, tag) for op in ops]
    if all(value is None for value in values):
        return _no_tag(len(ops))
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)


def _instance_tag(use: BlockUse, body: list[Op], tag: str, unroller: _Unroller) -> Ints:
    if tag not in use.set:
        recorded = _recorded_tag(body, tag)
        return _no_tag(len(body) * use.repeat) if recorded.strides == (0,) else np.tile(recorded, use.repeat)
    try:
        base, step = instance_value(use.set[tag])
    except ValueError:
        raise unroller.fail(
            f"block {use.block!r}", f'set.{tag} is {use.set[tag]!r}; write an integer or "base+step"'
        ) from None
    return np.repeat(base + step * np.arange(use.repeat, dtype=np.int64), len(body))
