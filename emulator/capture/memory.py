"""Memory events of a recorded step: what is allocated and freed, when, on which stream, and what it is for.

An alloc stands before the op that makes the storage. A free stands where the last reference went, but not before the
stream that the storage was allocated on has seen the last use of it: before that, an allocator that hands memory out
in stream order, as a GPU's does, cannot use it again.

When exactly a backend's threads, or Python's garbage collector, let go of a tensor is chance, and so is whether they do
before the recording ends. What a communication op has touched and no model or optimizer holds, or only the collector
freed, is therefore free after its last use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from emulator.capture.storages import Life
from emulator.capture.tape import GROUP_STREAM, Tape
from emulator.trace.messages import COMMUNICATION
from emulator.trace.schema import Op, Ref

_FSDP_STREAM = "fsdp."


def with_events(tape: Tape, category: Mapping[int, str], held: Collection[int]) -> tuple[list[Op], list[int]]:
    """The ops of a step with an ``alloc`` and ``free`` for each storage that came or went, and the new id of each
    recorded op. ``category``: of every storage, see :func:`categories`; ``held``: storages that models and optimizers
    hold at the end."""
    frees: dict[int, list[tuple[int, str]]] = defaultdict(list)  # storage and stream, by the number of ops before
    allocs: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for number, place, stream in _frees(tape, held):
        frees[place].append((number, stream))
    for number, life in enumerate(tape.storages.lives):
        if life.size and life.born is not None and not _unused(tape, number):
            allocs[life.born].append((number, life.stream))
    done: list[Op] = []
    moved: list[int] = []
    last = len(tape.ops) - 1

    def write(kind: Literal["alloc", "free"], events: Sequence[tuple[int, str]], near: Op) -> None:
        """Events with the tags of the op beside them, so that they lie in the same layer and phase."""
        for number, stream in events:
            op = Op(
                id=len(done), kind=kind, stream=stream, storage=number, bytes=tape.storages.lives[number].size,
                category=category[number], phase=near.phase, layer=near.layer, microbatch=near.microbatch,
                stage=near.stage,
            )  # fmt: skip
            done.append(op)

    for place, op in enumerate(tape.ops):
        write("free", frees[place], tape.ops[max(place - 1, 0)])
        write("alloc", allocs[place], op)
        moved.append(len(done))
        deps: list[Ref] = [moved[dep] for dep in op.deps if isinstance(dep, int)]
        done.append(msgspec.structs.replace(op, id=len(done), deps=deps))
    if tape.ops:
        write("free", frees[last + 1], tape.ops[last])
        write("alloc", allocs[last + 1], tape.ops[last])
    return done, moved


def categories(tape: Tape, held: Mapping[int, str]) -> dict[int, str]:
    """What each storage is for: ``parameter`` (what FSDP unshards included), ``gradient``, ``optimizer``, ``buffer``,
    ``communication`` (what a collective or a message fills, and is none of these), or ``activation`` (also what was
    received in forward and is kept for backward, such as a gathered sequence).

    ``held``: what models and optimizers are known to hold, by storage.
    """
    lives = tape.storages.lives
    found = {number: "parameter" for number, life in enumerate(lives) if life.resized} | dict(held)

    def are(accesses: Sequence[tuple[object, object]], what: str) -> None:
        for storage, _ in accesses:
            assert isinstance(storage, int)
            found.setdefault(storage, what)

    for op in tape.ops:
        name = op.name.rpartition(".")[2]
        if name in ("chunk_cat", "_chunk_cat"):  # FSDP2 packs gradients for their reduction
            are(op.reads, "gradient")
            are(op.writes, "communication")
        elif op.collective == "reduce_scatter" and op.stream.startswith(_FSDP_STREAM):  # the first FSDP does not pack
            are(op.reads, "gradient")
        if op.kind in COMMUNICATION or name == "all_gather_copy_in":
            are([access for access in op.writes if not _kept(tape, op, access[0])], "communication")
    for number, life in enumerate(lives):
        optimizing = life.born is not None and life.born < len(tape.ops) and tape.ops[life.born].phase == "optimizer"
        found.setdefault(number, "optimizer" if optimizing else "activation")
    return found


def _kept(tape: Tape, op: Op, storage: object) -> bool:
    """Whether what an op fills in forward is used in backward."""
    assert isinstance(storage, int)
    last = tape.last_use(storage)
    return op.phase == "forward" and last is not None and str(tape.ops[last].phase).startswith("backward")


def before_the_step(tape: Tape, category: Mapping[int, str], held: Mapping[int, int]) -> dict[str, int]:
    """Bytes alive before the step by category: what the step found there, and ``held``, bytes of storages that it did
    not use, under keys below 0."""
    resident: dict[str, int] = defaultdict(int)
    for number, life in enumerate(tape.storages.lives):
        if life.born is None:
            resident[category[number]] += life.size
    for number, size in held.items():
        resident[category[number]] += size
    return {kind: size for kind, size in sorted(resident.items()) if size}


def _frees(tape: Tape, held: Collection[int]) -> Iterator[tuple[int, int, str]]:
    """Storages that are freed, each with the number of ops before that and the stream."""
    communicated = {storage for op in tape.ops if op.kind in COMMUNICATION for storage, _ in (*op.reads, *op.writes)}
    waits: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # who waits for whom: (when, for which op)
    for place, stream, target in tape.waits:
        waits[stream, tape.ops[target].stream].append((place, target))
    for number, life in enumerate(tape.storages.lives):
        let_go = number in communicated and number not in held
        if life.size and (let_go or life.died is not None) and not _unused(tape, number):
            place, stream = _usable(tape, number, life, waits)
            if number not in communicated and not life.collected and life.died is not None:
                place = max(place, life.died)
            yield number, place, stream


def _usable(
    tape: Tape, number: int, life: Life, waits: Mapping[tuple[str, str], Sequence[tuple[int, int]]]
) -> tuple[int, str]:
    """From when on, and on which stream, a storage could be used anew, as far as its uses go."""
    last = tape.last_use(number)
    if last is None:
        assert life.died is not None
        return life.died, life.stream
    stream, home = tape.ops[last].stream, life.stream
    if stream == home:
        return last + 1, home
    listed = waits.get((home, stream), ())
    for place, target in listed[bisect_left(listed, (last + 1, -1)) :]:
        if target >= last:
            return place, home
    return (len(tape.ops), home) if stream.startswith(GROUP_STREAM) else (last + 1, stream)  # memory is no group's


def _unused(tape: Tape, number: int) -> bool:
    """Whether a storage was made and thrown away without any op between."""
    life = tape.storages.lives[number]
    return life.born is not None and life.born == life.died and tape.last_use(number) is None
