"""Which recorded ops a compiler would do in one kernel, decided inside one *run* of ops.

A run is a straight stretch of compute ops of one stream: nothing in it waits, communicates, changes layer or phase,
or is waited for by another stream except its last op. Inside a run the storages say all about who needs whom, so ops
may be grouped and reordered freely as long as that order is kept.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulator.trace.schema import Number, Op, Ref

FUSIBLE_CLASSES = frozenset({"norm", "rope", "activation", "loss", "pointwise", "copy"})
# Kernels of their own whatever surrounds them: FSDP's packing of many parameters, look-ups with data-dependent
# addresses, sorts, and copies between devices.
OWN_KERNEL = frozenset(
    {
        "all_gather_copy_in", "split_with_sizes_copy", "chunk_cat", "_chunk_cat",
        "embedding", "embedding_dense_backward", "index_put_", "index_put", "_index_put_impl_", "index_add_",
        "index_add", "scatter_add", "scatter_add_", "sort", "argsort", "topk", "bincount", "histc", "nonzero",
        "unique", "_unique2", "cumsum", "searchsorted", "multinomial",
    }
)  # fmt: skip
WIDE_REDUCTION_READS = 1 << 20  # bytes; from here on one thread block cannot produce a single number
FEW_NUMBERS = 64  # bytes

Storage = int | tuple[int, int, str]  # own storage of the block (or program level), or (k, id, block) elsewhere


@dataclass(frozen=True)
class Place:
    """What fusion has to know beyond a run: the block it lies in ("" for a program's own level), how large storages
    are (bytes, where anything is known), and which own storages are needed outside of the run."""

    home: str
    size: Mapping[Storage, Number]
    touched: Mapping[Storage, int]  # number of compute and communication ops here that touch an own storage
    kept: frozenset[int]  # own storages that other blocks or the next step use


def storage_key(ref: Ref, home: str) -> Storage:
    """The storage that ``ref`` means when written in block ``home``: an int only if it belongs to this instance."""
    if isinstance(ref, int):
        return ref
    back, name = int(ref[0]), int(ref[1])
    block = str(ref[2]) if len(ref) == 3 else home
    return name if block == home and back == 0 else (back, name, block)


def base_name(name: str) -> str:
    """``aten::add.Tensor``, ``aten.add.Tensor`` and ``add`` are all ``add``."""
    head, _, tail = name.rpartition("::")
    parts = tail.split(".")
    return parts[1] if not head and len(parts) > 1 else parts[0]


def same_on_all_ranks(op: Op) -> bool:
    """Whether all that is added up in a fused op is one number for all ranks."""
    return all(isinstance(x, int | float) for x in (op.flops, op.bytes_read, op.bytes_written, op.host_seconds))


def fusible(op: Op) -> bool:
    """Whether a compiler would put this op in a kernel together with others."""
    return (
        op.op_class in FUSIBLE_CLASSES
        and op.duration is None
        and same_on_all_ranks(op)
        and base_name(op.name) not in OWN_KERNEL
    )


# ---- the graph of a run


@dataclass(frozen=True)
class _Graph:
    """Order and flow between the ops of a run (by index). ``flow[i]`` maps producers of i's inputs to bytes."""

    before: list[set[int]]
    flow: list[dict[int, Number]]
    beside: list[list[int]]  # earlier readers of i's largest input, the latest first


def _graph(ops: Sequence[Op], place: Place, last_stays_last: bool) -> _Graph:
    index = {op.id: i for i, op in enumerate(ops)}
    before: list[set[int]] = [set() for _ in ops]
    flow: list[dict[int, Number]] = [{} for _ in ops]
    beside: list[list[int]] = [[] for _ in ops]
    writer: dict[Storage, int] = {}
    readers: dict[Storage, list[int]] = defaultdict(list)
    for i, op in enumerate(ops):
        before[i].update(index[d] for d in op.deps if isinstance(d, int) and d in index and index[d] < i)
        reads = [(storage_key(ref, place.home), size) for ref, size in op.reads]
        largest = max((size for _, size in reads), default=0)
        for key, size in reads:
            if key in writer:
                before[i].add(writer[key])
                flow[i][writer[key]] = flow[i].get(writer[key], 0) + size
            if size == largest:
                beside[i].extend(reversed(readers[key]))
        for ref, _ in op.writes:
            key = storage_key(ref, place.home)
            before[i].update(readers.pop(key, ()))
            if key in writer:
                before[i].add(writer[key])
            writer[key] = i
        for key, _ in reads:
            readers[key].append(i)
        before[i].discard(i)
    if last_stays_last and ops:
        before[-1].update(range(len(ops) - 1))
    return _Graph(before=before, flow=flow, beside=beside)


def _elements(op: Op) -> int:
    """Size of the op's loop: elements of its largest input (0 if no shapes were recorded)."""
    return max((math.prod(shape) for shape in op.shapes), default=0)


def _ends_its_kernel(op: Op) -> bool:
    """A reduction of much to (nearly) one number: whoever needs the number needs every thread block to be done."""
    reads = max((size for _, size in op.reads), default=0)
    writes = max((size for _, size in op.writes), default=0)
    return writes <= FEW_NUMBERS and reads >= WIDE_REDUCTION_READS


class _Grouping:
    """Groups of a run while they grow: contraction of the graph that stays free of cycles."""

    def __init__(self, ops: Sequence[Op], graph: _Graph) -> None:
        self.graph = graph
        self.before = [sorted(b) for b in graph.before]
        self.label = list(range(len(ops)))
        self.members = [[i] for i in range(len(ops))]
        self.ends = [_ends_its_kernel(op) for op in ops]

    def led_to(self, source: int, target: int) -> bool:
        """Whether group ``target`` needs ``source`` through at least one other group, or across a kernel's end."""
        seen = {source, target}
        stack = [target]
        while stack:
            group = stack.pop()
            for member in self.members[group]:
                for earlier in self.before[member]:
                    label = self.label[earlier]
                    if label == source and (group != target or self.ends[earlier]):
                        return True
                    if label not in seen:
                        seen.add(label)
                        stack.append(label)
        return False

    def join(self, a: int, b: int) -> None:
        """Make one group of the groups of ops ``a`` and ``b`` if a kernel of both could run in one go."""
        first, second = sorted((self.label[a], self.label[b]))
        if first == second or self.led_to(first, second) or self.led_to(second, first):
            return
        for member in self.members[second]:
            self.label[member] = first
        self.members[first].extend(self.members[second])
        self.members[second] = []


def groups(ops: Sequence[Op], place: Place, *, last_stays_last: bool = False) -> list[list[int]]:
    """Kernels of a run, each a list of indices into ``ops`` in recorded order, in an order in which they can run.

    Op by op in recorded order, an op joins the kernels that produce its inputs, the largest input first, then a
    kernel with the same loop that reads the same largest input. A join that would make a kernel wait for itself does
    not happen. ``last_stays_last`` keeps the last op last (an event is recorded behind it).
    """
    graph = _graph(ops, place, last_stays_last)
    grouping = _Grouping(ops, graph)
    able = [fusible(op) for op in ops]
    for i, op in enumerate(ops):
        if not able[i]:
            continue
        for producer in sorted(graph.flow[i], key=lambda p: (-graph.flow[i][p], p)):
            if able[producer]:
                grouping.join(producer, i)
        size = _elements(op)
        for reader in graph.beside[i]:
            if able[reader] and size and size == _elements(ops[reader]):
                grouping.join(reader, i)
                break
    return list(_in_order(grouping))


def _in_order(grouping: _Grouping) -> Iterator[list[int]]:
    """Groups in an order that respects what each needs; among those that could run, the one recorded done first."""
    last = {label: max(members) for label, members in enumerate(grouping.members) if members}
    needs: dict[int, set[int]] = {label: set() for label in last}
    needed_by: dict[int, set[int]] = {label: set() for label in last}
    for i, earlier in enumerate(grouping.before):
        for j in earlier:
            if grouping.label[i] != grouping.label[j]:
                needs[grouping.label[i]].add(grouping.label[j])
                needed_by[grouping.label[j]].add(grouping.label[i])
    ready = [(position, label) for label, position in last.items() if not needs[label]]
    heapq.heapify(ready)
    while ready:
        _, label = heapq.heappop(ready)
        yield sorted(grouping.members[label])
        for later in needed_by[label]:
            needs[later].discard(label)
            if not needs[later]:
                heapq.heappush(ready, (last[later], later))


# ---- one kernel


@dataclass
class _Traffic:
    """Bytes of one storage that a kernel moves, as far as known while its members are gone through."""

    ref: Ref
    read: Number = 0  # from outside
    written: Number = 0
    passed_on: bool = False  # written here, then read here
    touches: int = 0


def fuse(ops: Sequence[Op], place: Place) -> tuple[Op, set[int]]:
    """The kernel that does ``ops`` (two or more), and the own storages that no longer exist.

    Bytes: what comes from outside is read once (a storage read in parts counts up to its size); what was written and
    is needed elsewhere is written once; what only the members exchange stays in registers. Class and dtype are those
    of the member class, and of its member, that moved most bytes. One launch: the largest host time of the members.
    """
    traffic = _traffic(ops, place)
    gone = {key for key, t in traffic.items() if isinstance(key, int) and _vanishes(key, t, place)}
    reads = [(t.ref, t.read) for t in traffic.values() if t.read]
    writes = [(t.ref, t.written) for key, t in traffic.items() if t.written and key not in gone]
    moved: dict[str, Number] = defaultdict(int)
    for op in ops:
        moved[str(op.op_class)] += _bytes(op)
    dominant = max(moved, key=lambda c: moved[c])
    leader = max((op for op in ops if op.op_class == dominant), key=_bytes)
    inside = {op.id for op in ops}
    deps = {str(ref): ref for op in ops for ref in op.deps if not (isinstance(ref, int) and ref in inside)}
    fused = Op(
        id=ops[-1].id,
        kind="compute",
        op_class=leader.op_class,
        name=_name(ops),
        stream=ops[-1].stream,
        deps=list(deps.values()),
        host_seconds=max(_number(op.host_seconds) for op in ops),
        flops=sum(_number(op.flops) for op in ops),
        bytes_read=sum(size for _, size in reads),
        bytes_written=sum(size for _, size in writes),
        dtype=leader.dtype,
        reads=reads,
        writes=writes,
        sources=[source for op in ops for source in (op.sources or [op.id])],
        phase=ops[-1].phase,
        module=_common_module([op.module for op in ops]),
        layer=ops[-1].layer,
        microbatch=ops[-1].microbatch,
        stage=ops[-1].stage,
    )
    return fused, gone


def _traffic(ops: Sequence[Op], place: Place) -> dict[Storage, _Traffic]:
    traffic: dict[Storage, _Traffic] = {}
    for op in ops:
        read = set()
        for ref, size in op.reads:
            key = storage_key(ref, place.home)
            t = traffic.setdefault(key, _Traffic(ref))
            outside = max(0, min(size, place.size[key]) - t.written)
            t.read = min(t.read + outside, place.size[key])
            t.passed_on |= t.written > 0
            read.add(key)
        changed = set()
        for ref, size in op.writes:
            key = storage_key(ref, place.home)
            t = traffic.setdefault(key, _Traffic(ref))
            in_place = key in read  # what it read is what it replaces, not a further part of the storage
            t.written = min(max(t.written, size) if in_place else t.written + size, place.size[key])
            changed.add(key)
        for key in read | changed:
            traffic[key].touches += 1
    return traffic


def _vanishes(key: int, t: _Traffic, place: Place) -> bool:
    return t.passed_on and not t.read and t.touches == place.touched[key] and key not in place.kept


def _number(value: object) -> Number:
    """A size that :func:`fusible` has found to be the same on all ranks."""
    assert isinstance(value, int | float)
    return value


def _bytes(op: Op) -> Number:
    return _number(op.bytes_read) + _number(op.bytes_written)


def _name(ops: Sequence[Op]) -> str:
    """``fused[norm x6 + pointwise]``: classes in the order they first come, with how many ops of each."""
    count: dict[str, int] = defaultdict(int)
    for op in ops:
        count[str(op.op_class)] += 1
    return "fused[" + " + ".join(f"{c} x{n}" if n > 1 else c for c, n in count.items()) + "]"


def _common_module(modules: Sequence[str]) -> str:
    common: list[str] = []
    for parts in zip(*(module.split(".") for module in modules), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
