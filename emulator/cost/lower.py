"""From recorded ops to the kernels that would run: ``eager`` leaves a trace alone, ``compile`` fuses it.

The recorded trace stays what torch's eager mode did. A fused op keeps the ids of its members in ``sources``, so a
simulated schedule can still be carried out op by op.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from emulator.cost.fusion import FUSIBLE_CLASSES, Place, Storage, fuse, groups, same_on_all_ranks, storage_key
from emulator.errors import InputError
from emulator.trace.messages import MEMORY
from emulator.trace.schema import BlockUse, Number, Op, Program, RanksByAxis, Ref, Trace

MODES = ("eager", "compile")
_LONGEST_RUN = 512  # ops; traces without layer tags would make the search for groups quadratic

Items = Sequence[Op | BlockUse]


@dataclass(frozen=True)
class Lowered:
    """A lowered trace, how many compute ops all ranks together run in a step (blocks repeated) before and after, and
    what could not be fused and why, counted in the same way."""

    trace: Trace
    kernels_recorded: int
    kernels_timed: int
    notes: dict[str, int]


def lower(trace: Trace, mode: str) -> Lowered:
    """Lower ``trace``: ``"eager"`` returns it unchanged, ``"compile"`` with element-wise ops and reductions fused.

    Raises InputError if ``mode`` is not one of :data:`MODES`.
    """
    if mode not in MODES:
        raise InputError(f"unknown lowering {mode!r}; known: {', '.join(MODES)}", source="--lower")
    recorded = _kernels(trace)
    if mode == "eager":
        return Lowered(trace=trace, kernels_recorded=recorded, kernels_timed=recorded, notes={})
    lowered = _compile(trace)
    return Lowered(trace=lowered, kernels_recorded=recorded, kernels_timed=_kernels(lowered), notes=_unfused(trace))


# ---- the whole trace: what blocks and programs know of each other


@dataclass(frozen=True)
class _Links:
    """What is needed across blocks, by block name ("" for the programs' own level)."""

    size: Mapping[tuple[str, int], Number]  # bytes of a storage, see _sizes
    storages: Mapping[str, set[int]]  # referred to from another block or instance
    freed: Mapping[str, set[int]]  # storages that are freed, there or elsewhere
    awaited: Mapping[str, set[int]]  # ops that an op elsewhere, on another stream, depends on


def _contexts(trace: Trace) -> Iterator[tuple[str, Items]]:
    yield from trace.blocks.items()
    for program in trace.programs:
        yield "", program.ops


def _links(trace: Trace) -> _Links:
    storages: dict[str, set[int]] = defaultdict(set)
    freed: dict[str, set[int]] = defaultdict(set)
    streams: dict[tuple[str, int], set[str]] = defaultdict(set)
    for home, items in _contexts(trace):
        for op in items:
            if isinstance(op, Op):
                streams[home, op.id].add(op.stream)
    awaited: dict[str, set[int]] = defaultdict(set)
    for home, items in _contexts(trace):
        for op in items:
            if isinstance(op, BlockUse):
                continue
            for ref, _ in (*op.reads, *op.writes):
                if isinstance(key := storage_key(ref, home), tuple):
                    storages[key[2]].add(key[1])
            if op.kind == "free" and op.storage is not None:
                block, name = _home_of(op.storage, home)
                freed[block].add(name)
            for dep in op.deps if op.kind not in MEMORY else ():
                if not isinstance(dep, int):
                    block, name = (str(dep[2]) if len(dep) == 3 else home), int(dep[1])
                    if streams[block, name] != {op.stream}:
                        awaited[block].add(name)
    return _Links(size=_sizes(_contexts(trace)), storages=storages, freed=freed, awaited=awaited)


def _home_of(ref: Ref, home: str) -> tuple[str, int]:
    """The block in which a storage lives that is named in block ``home``, and its number there."""
    key = storage_key(ref, home)
    return (home, key) if isinstance(key, int) else (key[2], key[1])


def _sizes(contexts: Iterable[tuple[str, Items]]) -> dict[tuple[str, int], Number]:
    """Bytes of every storage: as allocated; else, if its own block begins by writing it, all that is written there (a
    later read of more is of an expanded view); else the largest access."""
    allocated: dict[tuple[str, int], Number] = {}
    written: dict[tuple[str, int], Number] = {}
    largest: dict[tuple[str, int], Number] = defaultdict(int)
    for home, items in contexts:
        for op in items:
            if isinstance(op, BlockUse):
                continue
            if op.kind == "alloc" and isinstance(op.storage, int) and isinstance(op.bytes, int | float):
                allocated[home, op.storage] = op.bytes
            read = {storage_key(ref, home) for ref, _ in op.reads}
            for ref, amount in (*op.reads, *op.writes):
                key, storage = storage_key(ref, home), _home_of(ref, home)
                if isinstance(key, int) and key not in read and (storage in written or storage not in largest):
                    written[storage] = written.get(storage, 0) + amount
                largest[storage] = max(largest[storage], amount)
    return {**largest, **written, **allocated}


def _compile(trace: Trace) -> Trace:
    links = _links(trace)
    renamed: dict[str, list[dict[int, int]]] = defaultdict(list)  # by block; "" has one for every program
    fused: list[tuple[str, list[Op | BlockUse]]] = []
    gone: set[tuple[str, int]] = set()  # storages that exist no more
    for home, items in _contexts(trace):
        lowered, names, kept_inside = _fuse_items(items, home, links)
        renamed[home].append(names)
        fused.append((home, lowered))
        gone.update((home, storage) for storage in kept_inside)
    across = {home: _agreed(names) for home, names in renamed.items()}
    own = {home: iter(names) for home, names in renamed.items()}
    done = [(home, _point_anew(_without(items, home, gone), home, next(own[home]), across)) for home, items in fused]
    blocks = {home: [op for op in items if isinstance(op, Op)] for home, items in done if home}
    programs = [Program(ops=items) for home, items in done if not home]
    return msgspec.structs.replace(trace, blocks=blocks, programs=programs)


def _without(items: Items, home: str, gone: set[tuple[str, int]]) -> list[Op | BlockUse]:
    """``items`` without the frees of what other blocks have made and do not make any more."""
    return [
        item
        for item in items
        if not (isinstance(item, Op) and item.kind == "free" and isinstance(item.storage, list))
        or _home_of(item.storage, home) not in gone
    ]


def _agreed(names: Sequence[dict[int, int]]) -> dict[int, int | None]:
    """One renaming for all programs; None where they differ (see :func:`_point_anew`)."""
    agreed: dict[int, int | None] = {}
    for old in {old for renaming in names for old in renaming}:
        targets = {renaming.get(old, old) for renaming in names}
        agreed[old] = targets.pop() if len(targets) == 1 else None
    return agreed


def _point_anew(
    items: Items, home: str, own: Mapping[int, int], across: Mapping[str, Mapping[int, int | None]]
) -> list[Op | BlockUse]:
    """``items`` with dependencies on fused-away ops turned to the ops that now do their work.

    A reference to the programs' own level that would have to differ between programs is left out: fused-away ops are
    never awaited by another stream, so the order of their stream implies it.
    """
    done: list[Op | BlockUse] = []
    for item in items:
        if isinstance(item, BlockUse) or not item.deps:
            done.append(item)
            continue
        deps: dict[str, Ref] = {}
        for dep in item.deps:
            turned = _turned(dep, home, own, across)
            if turned is not None and turned != item.id:
                deps[str(turned)] = turned
        done.append(msgspec.structs.replace(item, deps=list(deps.values())))
    return done


def _turned(dep: Ref, home: str, own: Mapping[int, int], across: Mapping[str, Mapping[int, int | None]]) -> Ref | None:
    if isinstance(dep, int):
        return own.get(dep, dep)
    old = int(dep[1])
    new = across.get(str(dep[2]) if len(dep) == 3 else home, {}).get(old, old)
    return None if new is None else [dep[0], new, *dep[2:]]


# ---- one block, or the ops of a program's own level


def _place(items: Items, home: str, links: _Links) -> Place:
    ops = [op for op in items if isinstance(op, Op)]
    by_id = {op.id: op for op in ops}
    sizes = links.size if home else _sizes([(home, items)])  # programs number their own storages each for itself
    touched: Counter[Storage] = Counter()
    size: dict[Storage, Number] = {}
    kept = set(links.storages.get(home, ()))
    allocated: set[int] = set()
    for op in ops:
        keys = {storage_key(ref, home) for ref, _ in (*op.reads, *op.writes)}
        touched.update(keys)
        for key in keys:
            size[key] = sizes[home, key] if isinstance(key, int) else links.size[key[2], key[1]]
        if op.kind == "alloc" and isinstance(op.storage, int):
            allocated.add(op.storage)
        if op.kind in ("collective", "send") and not op.reads:  # it takes what the ops before it wrote
            producers = [by_id[dep] for dep in op.deps if isinstance(dep, int) and dep in by_id]
            kept.update(ref for producer in producers for ref, _ in producer.writes if isinstance(ref, int))
    return Place(
        home=home, size=size, touched=touched, kept=frozenset(kept | (allocated - links.freed.get(home, set())))
    )


def _awaited(items: Items, home: str, links: _Links) -> set[int]:
    """Ops behind which an event is recorded: another stream waits until their stream has come to them."""
    stream = {op.id: op.stream for op in items if isinstance(op, Op)}
    awaited = set(links.awaited.get(home, ()))
    for op in items:
        if isinstance(op, Op) and op.kind not in MEMORY:
            awaited.update(d for d in op.deps if isinstance(d, int) and d in stream and stream[d] != op.stream)
    return awaited


def _runs(items: Items, awaited: set[int]) -> Iterator[list[int]]:
    """Straight stretches of compute ops of one stream (positions in ``items``), as :mod:`.fusion` wants them."""
    runs: dict[str, list[int]] = defaultdict(list)
    tags: dict[str, object] = {}
    for position, item in enumerate(items):
        if isinstance(item, BlockUse) or item.kind == "host_sync":
            yield from runs.values()
            runs.clear()
        elif item.kind in MEMORY:
            continue
        elif item.kind != "compute" or not (item.reads or item.writes):
            yield runs.pop(item.stream, [])
        else:
            tag = (item.phase, item.layer, item.microbatch, item.stage)
            if tags.get(item.stream) != tag or len(runs[item.stream]) == _LONGEST_RUN:
                yield runs.pop(item.stream, [])
            tags[item.stream] = tag
            runs[item.stream].append(position)
            if item.id in awaited:
                yield runs.pop(item.stream)
    yield from runs.values()


@dataclass(frozen=True)
class _Moves:
    """What becomes of the ops of one list: new ops by the position they go to, positions left empty, new names."""

    ops: dict[int, list[Op]]
    empty: set[int]
    names: dict[int, int]


def _fuse_items(items: Items, home: str, links: _Links) -> tuple[list[Op | BlockUse], dict[int, int], set[int]]:
    """``items`` with its runs as kernels, the ids of the ops that stand for fused-away ones, and the storages that
    exist no more."""
    place = _place(items, home, links)
    awaited = _awaited(items, home, links)
    moves = _Moves(ops=defaultdict(list), empty=set(), names={})
    last_use: dict[Storage, int] = {}
    makers: dict[int, int] = {}  # storages that exist no more, by the fused op that kept them to itself
    for run in _runs(items, awaited):
        _fuse_run(items, run, place, awaited, moves, last_use, makers)
    _follow(items, home, moves, last_use, makers)
    done: list[Op | BlockUse] = []
    for position, item in enumerate(items):
        if position in moves.ops:
            done.extend(moves.ops[position])
        if position not in moves.empty:
            done.append(item)
    return done, moves.names, set(makers)


def _fuse_run(
    items: Items,
    run: Sequence[int],
    place: Place,
    awaited: set[int],
    moves: _Moves,
    last_use: dict[Storage, int],
    makers: dict[int, int],
) -> None:
    """Add the kernels of one run to ``moves``. A kernel goes where its last member was, or right behind the kernels
    it needs: nothing moves forward, so whatever lies between still comes after what it needs."""
    ops = [item for item in (items[position] for position in run) if isinstance(item, Op)]
    kernels = groups(ops, place, last_stays_last=bool(ops) and ops[-1].id in awaited)
    if len(kernels) == len(ops):
        return
    position = -1
    for members in kernels:
        position = max(position, run[members[-1]])
        kernel = ops[members[0]]
        if len(members) > 1:
            kernel, gone = fuse([ops[m] for m in members], place)
            moves.names.update({ops[m].id: kernel.id for m in members if ops[m].id != kernel.id})
            makers.update(dict.fromkeys(gone, kernel.id))
        moves.ops[position].append(kernel)
        for ref, _ in (*kernel.reads, *kernel.writes):
            key = storage_key(ref, place.home)
            last_use[key] = max(position, last_use.get(key, -1))
    moves.empty.update(run)


def _follow(items: Items, home: str, moves: _Moves, last_use: Mapping[Storage, int], makers: Mapping[int, int]) -> None:
    """Memory follows the kernels: what exists no more is not allocated, and nothing is freed before its last use."""
    waiting: dict[int, set[int]] = defaultdict(set)  # by op: who depends on it
    bookkeeping: dict[Storage, set[int]] = defaultdict(set)  # allocations and frees by storage
    for op in items:
        if isinstance(op, Op):
            for dep in op.deps:
                if isinstance(dep, int):
                    waiting[dep].add(moves.names.get(op.id, op.id))
            if op.storage is not None:
                bookkeeping[storage_key(op.storage, home)].add(op.id)
    for position, op in enumerate(items):
        if isinstance(op, BlockUse) or op.storage is None:
            continue
        key = storage_key(op.storage, home)
        if isinstance(key, int) and key in makers and waiting[op.id] <= bookkeeping[key] | {makers[key]}:
            moves.empty.add(position)
            moves.names[op.id] = makers[key]
        elif op.kind == "free" and last_use.get(key, -1) > position:
            moves.ops[last_use[key]].append(op)
            moves.empty.add(position)


# ---- counting


def _executions(trace: Trace) -> Iterator[tuple[int, Sequence[Op]]]:
    """Lists of ops, each with how often all ranks together execute it in a step."""
    if isinstance(trace.ranks, RanksByAxis):
        size = trace.world_size // len(trace.ranks.programs)
        ranks = [(size, program) for program in trace.ranks.programs]
    else:
        ranks = list(trace.ranks)
    by_block: Counter[str] = Counter()
    for count, index in ranks:
        own: list[Op] = []
        for item in trace.programs[index].ops:
            if isinstance(item, Op):
                own.append(item)
            else:
                by_block[item.block] += item.repeat * count
        yield count, own
    for block, count in by_block.items():
        yield count, trace.blocks[block]


def _kernels(trace: Trace) -> int:
    return sum(times * sum(op.kind == "compute" for op in ops) for times, ops in _executions(trace))


def _unfused(trace: Trace) -> dict[str, int]:
    """Ops of a class that fuses which were left alone for what the trace says, or does not say, of them."""
    reasons: Counter[str] = Counter()
    for times, ops in _executions(trace):
        for op in ops:
            if op.kind != "compute" or op.op_class not in FUSIBLE_CLASSES:
                continue
            if op.duration is not None:
                reasons["measured time"] += times
            elif not (op.reads or op.writes):
                reasons["no recorded reads and writes"] += times
            elif not same_on_all_ranks(op):
                reasons["size differs between ranks"] += times
    return dict(reasons)
