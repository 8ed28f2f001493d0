"""Finding the repeats of a recorded program: layers become blocks, and a trace as short as one layer.

Ops of one phase and layer that follow each other are an *instance*; instances of neighbouring layers in a row that do
the same are one block. What an op names elsewhere (ops it waits for, storages) is rewritten relative to its instance;
only where that is the same in all instances do they share a block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from emulator.capture.tape import Tape
from emulator.trace.expand import rows, templates
from emulator.trace.schema import BlockUse, Op, Program, Ref, Trace

SHORTEST = 3  # instances worth a block
SAME_LAYER = -1  # in a storage reference: the instance of that block with this one's layer; -2: with the next one's


@dataclass(frozen=True)
class Run:
    """Instances of one block: instance i is ``size`` ops from ``start + i * size``, of layer ``first + i * step``."""

    name: str
    start: int
    size: int
    count: int
    first: int
    step: int

    @property
    def end(self) -> int:
        return self.start + self.count * self.size

    def layer(self, instance: int) -> int:
        return self.first + instance * self.step

    def cut(self, begin: int, end: int) -> Run:
        """The instances ``begin`` to ``end`` alone."""
        start, first = self.start + begin * self.size, self.layer(begin)
        return Run(self.name, start, self.size, end - begin, first, self.step)


def fold(trace: Trace) -> Trace:
    """``trace`` with its repeats as blocks. A program that would not unroll to the same again is left as it is."""
    blocks: dict[str, list[Op]] = {}
    programs = []
    for number, program in enumerate(trace.programs):
        ops = [op for op in program.ops if isinstance(op, Op)]
        prefix = f"p{number}_" if len(trace.programs) > 1 else ""
        found, items = _fold_program(ops, prefix)
        alone = msgspec.structs.replace(trace, blocks=found, programs=[Program(ops=items)], exec=None)
        if found and _same_again(alone, ops):
            blocks.update(found)
            programs.append(Program(ops=items))
        else:
            programs.append(program)
    return msgspec.structs.replace(trace, blocks=blocks, programs=programs)


def _fold_program(ops: list[Op], prefix: str) -> tuple[dict[str, list[Op]], list[Op | BlockUse]]:
    runs = list(_candidates(ops, prefix))
    while True:
        book = _Book(ops, runs)
        bodies: dict[str, list[Op]] = {}
        for i, run in enumerate(runs):
            body, same = book.body(run)
            if same != (0, run.count):
                runs[i : i + 1] = [run.cut(*same)] if same[1] - same[0] >= SHORTEST else []
                break
            bodies[run.name] = body
        else:
            return bodies, list(book.items())


# ---- candidates: instances that look alike, whatever they refer to


def _candidates(ops: list[Op], prefix: str) -> Iterator[Run]:
    segments: list[tuple[int, int, object, int | None]] = []
    position = 0
    for (phase, layer), group in groupby(ops, key=lambda op: (op.phase, op.layer)):
        length = len(list(group))
        segments.append((position, length, phase, layer))
        position += length
    names: dict[str, int] = {}
    i = 0
    while i < len(segments):
        start, size, phase, layer = segments[i]
        j, step = i + 1, 0
        while layer is not None and j < len(segments):
            (next_start, next_size, next_phase, next_layer), before = segments[j], segments[j - 1][3]
            if next_layer is None or before is None or next_phase != phase or next_size != size:
                break
            step = step or next_layer - before
            if abs(step) != 1 or next_layer - before != step:
                break
            if any(_look(ops[start + k]) != _look(ops[next_start + k]) for k in range(size)):
                break
            j += 1
        if layer is not None and j - i >= SHORTEST:
            name = f"{prefix}layer_{phase}"
            names[name] = names.get(name, 0) + 1
            name = name if names[name] == 1 else f"{name}_{names[name]}"
            yield Run(name, start, size, j - i, layer, step)
        i = max(j, i + 1)


def _look(op: Op) -> Op:
    """An op without what it refers to and without its layer."""
    return msgspec.structs.replace(
        op, id=0, deps=[], layer=None, module=_module(op), reads=[(0, n) for _, n in op.reads],
        writes=[(0, n) for _, n in op.writes], storage=None if op.storage is None else 0,
    )  # fmt: skip


def _module(op: Op) -> str:
    """Module path with ``*`` for the layer's number: a block has one text for all its instances."""
    return re.sub(rf"(^|\.){op.layer}(?=\.|$)", r"\1*", op.module, count=1) if op.layer is not None else op.module


# ---- references


class _Book:
    """Where every op and storage of a program lives, once the blocks are decided, and how others name it from afar."""

    def __init__(self, ops: list[Op], runs: Sequence[Run]) -> None:
        self.ops = ops
        self.runs = runs
        self._homes: dict[int, tuple[Run, int]] = {}  # op -> its run and instance, for ops in blocks
        for run in runs:
            for index in range(run.start, run.end):
                self._homes[index] = (run, (index - run.start) // run.size)
        self._storages: dict[int, tuple[int, int]] = {}  # storage -> op that touches it first, number there
        counts: dict[object, int] = {}
        for op in ops:
            for storage in _storages(op):
                assert isinstance(storage, int)
                if storage not in self._storages:
                    home = self._homes.get(op.id)
                    key = (home[0].name, home[1]) if home else None
                    self._storages[storage] = (op.id, counts.get(key, 0) if home else storage)
                    counts[key] = counts.get(key, 0) + 1

    def refer(self, at: int, target: int, name: int, *, storage: bool) -> Ref:
        """``name`` at home with op ``target``, as named by op ``at``."""
        here, there = self._homes.get(at), self._homes.get(target)
        if there is None:
            return name if here is None else [0, name, ""]
        run, instance = there
        if here is not None and here[0] is run:
            back = here[1] - instance
            return name if back == 0 else [back, name]
        if storage and here is not None:
            ahead = (run.layer(instance) - here[0].layer(here[1])) * here[0].step
            if ahead in (0, 1):  # backward goes through the layers the other way round: no fixed number of instances
                return [SAME_LAYER - ahead, name, run.name]
        latest = run.count - 1 if at >= run.end else (at - run.start) // run.size
        return [latest - instance, name, run.name]

    def op(self, index: int) -> Op:
        """An op with its references rewritten for where it lives."""
        op = self.ops[index]
        home = self._homes.get(index)

        def storage(number: Ref) -> Ref:
            assert isinstance(number, int)
            first, name = self._storages[number]
            return self.refer(index, first, name, storage=True)

        changes = {
            "deps": [self.refer(index, dep, self._name(dep), storage=False) for dep in op.deps if isinstance(dep, int)],
            "reads": [(storage(ref), size) for ref, size in op.reads],
            "writes": [(storage(ref), size) for ref, size in op.writes],
            "storage": None if op.storage is None else storage(op.storage),
        }
        if home is not None:
            changes |= {"id": self._name(index), "layer": None, "module": _module(op)}
        return msgspec.structs.replace(op, **changes)

    def _name(self, index: int) -> int:
        home = self._homes.get(index)
        return index if home is None else (index - home[0].start) % home[0].size

    def body(self, run: Run) -> tuple[list[Op], tuple[int, int]]:
        """Ops of the block, and the instances (begin, end) that it describes: all of them, or a shorter row."""
        later = [self.op(run.start + run.size + k) for k in range(run.size)]
        for instance in range(2, run.count):
            start = run.start + instance * run.size
            if any(self.op(start + k) != later[k] for k in range(run.size)):
                return [], (1, run.count) if instance == 2 else (0, instance)
        merged = [self._with_first(self.op(run.start + k), op) for k, op in enumerate(later)]
        if any(op is None for op in merged):
            return [], (1, run.count)
        return [op for op in merged if op is not None], (0, run.count)

    def _with_first(self, first: Op, later: Op) -> Op | None:
        """The op of all instances, which also says what the first one refers to outside; None if that cannot be said.

        Later instances gain references to older ops of a stream for whose newer ops they wait anyway, and storages
        with 0 bytes: neither changes what they do. What the first instance frees from before the block is not said.
        """
        deps = [*later.deps, *(dep for dep in first.deps if dep not in later.deps)]
        reads, writes = (_both(getattr(first, side), getattr(later, side)) for side in ("reads", "writes"))
        if reads is None or writes is None or not (first.storage == later.storage or _reaches_back(later.storage)):
            return None
        return msgspec.structs.replace(later, deps=deps, reads=reads, writes=writes)

    def items(self) -> Iterator[Op | BlockUse]:
        """The program: its own ops and the uses of blocks."""
        starts = {run.start: run for run in self.runs}
        index = 0
        while index < len(self.ops):
            if run := starts.get(index):
                yield BlockUse(block=run.name, repeat=run.count, set={"layer": f"{run.first}{run.step:+d}"})
                index = run.end
            else:
                yield self.op(index)
                index += 1


def _storages(op: Op) -> list[Ref]:
    """All that an op touches, allocates or frees."""
    return [*([] if op.storage is None else [op.storage]), *(ref for ref, _ in (*op.reads, *op.writes))]


def _reaches_back(ref: Ref | None) -> bool:
    """Whether a reference is to an earlier instance of the same block, which the first instance does not have."""
    return isinstance(ref, list) and len(ref) == 2


Accesses = list[tuple[Ref, int | float]]


def _both(first: Accesses, later: Accesses) -> Accesses | None:
    extra: Accesses = []
    for (mine, _), (theirs, _) in zip(first, later, strict=True):
        if mine == theirs:
            continue
        if not _reaches_back(theirs) or isinstance(mine, int):
            return None
        if (mine, 0) not in extra:
            extra.append((mine, 0))
    return [*later, *extra]


# ---- the check


def _same_again(trace: Trace, ops: list[Op]) -> bool:
    """Whether the folded program unrolls to the recorded one: same ops, and, past what order implies, same waits."""
    shapes = templates(trace)
    unrolled, known = rows(trace, 0, known=shapes), shapes.ops
    if len(unrolled) != len(ops):
        return False
    tape = Tape()
    for index, op in enumerate(ops):
        shape = known[int(unrolled.template[index])]
        deps = unrolled.deps[unrolled.deps_ptr[index] : unrolled.deps_ptr[index + 1]].tolist()
        layer = int(unrolled.tags["layer"][index])
        module = shape.module.replace("*", str(layer), 1)
        if (shape.kind, shape.name, shape.stream, module, None if layer < 0 else layer) != (
            op.kind, op.name, op.stream, op.module, op.layer,
        ):  # fmt: skip
            return False
        again = Op(id=0, kind=op.kind, stream=op.stream, peer=op.peer, batch=op.batch)
        tape.add(again, after=deps)
        if again.deps != op.deps:
            return False
    return True
