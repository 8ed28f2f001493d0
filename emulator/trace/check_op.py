"""Faults of single ops: numbers, references, partners, sizes. Nothing here looks at a second op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from emulator.trace.fault import Fault
from emulator.trace.messages import COMMUNICATION, MEMORY
from emulator.trace.schema import DTYPE_BYTES, Op, PerRank, RankNumber, Trace

# Far beyond any op, and sums over millions of them still fit into 64 bits (bytes) or are exact enough (the others).
_MAX_BYTES, _MAX_SECONDS, _MAX_FLOPS = 1e15, 1e9, 1e24
_LIMITS = {
    "host_seconds": _MAX_SECONDS, "duration": _MAX_SECONDS, "flops": _MAX_FLOPS, "bytes_read": _MAX_BYTES,
    "bytes_written": _MAX_BYTES, "bytes_in": _MAX_BYTES, "bytes_out": _MAX_BYTES, "bytes": _MAX_BYTES,
}  # fmt: skip
_STORAGE_BACK = -2  # `[-1, id, block]`, `[-2, id, block]`: by layer, see the schema


def op_faults(trace: Trace, here: str, op: Op, home: str) -> Iterator[Fault]:
    """Faults of one op, which stands in block ``home`` ("": at a program's own level)."""
    for field, limit in _LIMITS.items():
        value = getattr(op, field)
        if value is not None and (reason := number_reason(trace, value, limit)):
            yield Fault(here, f"{field} {reason}")
    yield from _reference_faults(trace, here, op, home)
    if op.dtype and op.dtype not in DTYPE_BYTES:
        yield Fault(here, f"unknown dtype {op.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
    elif op.kind in COMMUNICATION:
        yield from _message_faults(trace, here, op)


def number_reason(trace: Trace, value: RankNumber, limit: float = _MAX_BYTES, parts: tuple[int, ...] = ()) -> str:
    """What is wrong with a number, or with a table of numbers by rank (with ``parts``: of lists of that shape)."""
    if not isinstance(value, PerRank):
        return "" if 0 <= value <= limit else _range_reason(value, limit)
    reason = _table_reason(trace, value, parts)
    if reason or not np.size(value.values):
        return reason
    table = np.asarray(value.values, dtype=np.float64)
    return _range_reason(float(table.min()), limit) or _range_reason(float(table.max()), limit)


def _range_reason(value: float, limit: float) -> str:
    if value > limit:
        return f"is too large (more than {limit:g})"
    return f"is negative ({value:g})" if value < 0 else ""


def _table_reason(trace: Trace, value: PerRank, parts: tuple[int, ...]) -> str:
    for axis in value.axes:
        if axis not in trace.mesh.axes:
            return f"goes by axis {axis!r}, which is not on the mesh ({', '.join(trace.mesh.axes)})"
    if len(set(value.axes)) != len(value.axes):
        return "names an axis twice"
    expected = (*(trace.mesh.shape[trace.mesh.axes.index(axis)] for axis in value.axes), *parts)
    try:
        table = np.asarray(value.values)
    except ValueError:  # rows of different lengths
        table = np.empty(1, dtype=object)
    if table.dtype.kind not in "iuf" or _has_flags(value.values):
        return "is not a regular table of numbers"
    return "" if table.shape == expected else f"has values of shape {table.shape}, its axes make {expected}"


def _has_flags(values: list[Any]) -> bool:
    """Whether a table holds true or false, which NumPy takes for 1 and 0 among numbers."""
    kinds = set(map(type, values))
    return bool in kinds or (list in kinds and any(map(_has_flags, values)))


def _reference_faults(trace: Trace, here: str, op: Op, home: str) -> Iterator[Fault]:
    for ref in op.deps:
        if not isinstance(ref, int) and (reason := _reference_reason(trace, ref, home, 0)):
            yield Fault(here, f"deps: {reason}")
    for field, touched in (("reads", op.reads), ("writes", op.writes)):
        for ref, size in touched:
            if not isinstance(ref, int) and (reason := _reference_reason(trace, ref, home, _STORAGE_BACK)):
                yield Fault(here, f"{field}: {reason}")
            if reason := number_reason(trace, size):
                yield Fault(here, f"{field}: {size} bytes of storage {ref}: {reason.removeprefix('is ')}")
    if op.storage is None:
        if op.kind in MEMORY:
            yield Fault(here, f"a {op.kind} without its storage")
    elif not isinstance(op.storage, int) and (reason := _reference_reason(trace, op.storage, home, _STORAGE_BACK)):
        yield Fault(here, f"storage: {reason}")


def _reference_reason(trace: Trace, ref: Sequence[int | str], home: str, back: int) -> str:
    """What is wrong with the form of ``[k, id]`` or ``[k, id, block]``; k may go down to ``back`` with a block."""
    shape = "a reference is id, [k, id] or [k, id, block] with k >= 0"
    if len(ref) not in (2, 3) or not isinstance(ref[0], int) or not isinstance(ref[1], int):
        return f"{shape}, not {list(ref)}"
    block = ref[2] if len(ref) == 3 else home
    if not isinstance(block, str) or (block and block not in trace.blocks):
        return f"refers to unknown block {block!r}; known: {', '.join(trace.blocks) or 'none'}"
    if ref[0] < (back if len(ref) == 3 and block else 0):
        return f"{shape}, not {list(ref)}"
    if len(ref) == 2 and not home:
        return f"{list(ref)}: only ops of a block have instances; name the block: [k, id, block]"
    return ""


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
    for field in ("bytes_in", "bytes_out", "bytes"):
        value = getattr(op, field)
        if not number_reason(trace, value):
            yield from _element_faults(here, field, op.dtype, [value])
    for field in ("splits_in", "splits_out"):
        reason = _split_reason(trace, op, field)
        if reason:
            yield Fault(here, f"{field} {reason}")
        else:
            yield from _element_faults(here, field, op.dtype, _parts(op, field))


def _element_faults(here: str, field: str, dtype: str, sizes: list[RankNumber]) -> Iterator[Fault]:
    width = DTYPE_BYTES[dtype]
    odd = next((value for size in sizes for value in _values(size) if value % width), None)
    if odd is not None:
        yield Fault(here, f"{field} = {odd:g} is not a whole number of {dtype} elements ({width} bytes)")


def _split_reason(trace: Trace, op: Op, field: str) -> str:
    splits = op.splits_in if field == "splits_in" else op.splits_out
    if splits is None:
        return ""
    if op.collective != "all_to_all":
        return f"belongs to an all_to_all, not to {op.collective or op.kind}"
    sizes = group_sizes(trace, op.group)
    if len(sizes) != 1:
        return f"needs communicators of one size; group {op.group!r} has {', '.join(map(str, sorted(sizes)))}"
    members = min(sizes)
    if isinstance(splits, PerRank):
        return number_reason(trace, splits, parts=(members,))
    if len(splits) != members:
        return f"has {len(splits)} parts for a group of {members}"
    return next((f"part {i} {reason}" for i, part in enumerate(splits) if (reason := number_reason(trace, part))), "")


def _parts(op: Op, field: str) -> list[RankNumber]:
    splits = op.splits_in if field == "splits_in" else op.splits_out
    return [] if splits is None else [splits] if isinstance(splits, PerRank) else list(splits)


def group_sizes(trace: Trace, name: str) -> set[int]:
    """Numbers of members that the communicators of a group have."""
    group = trace.groups[name]
    if group.axes is None:
        return {len(ranks) for ranks in group.ranks or []}
    size = 1
    for axis in group.axes:
        size *= trace.mesh.shape[trace.mesh.axes.index(axis)]
    return {size}


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
