"""Whether the numbers of a result can be true: finite, not negative, and adding up to each other.

The shape of its tables, and what points at what, is for :mod:`.check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import fsum, inf
from typing import Any

import msgspec
import numpy as np

from emulator.result.schema import RankClass, Result
from emulator.result.tables import Labels

Misfit = tuple[str, str]  # place and reason
_CLOSE = 1e-6  # of the step
_LARGEST = 2**63 - 1
_SIGNED = {  # rounding, or a change for the better, may turn these
    "sum_minus_step_seconds", "congestion", "own_rank_seconds", "other_ranks_seconds", "slower_links_seconds",
    "memory_bytes",
}  # fmt: skip
_FROM_MINUS_ONE = {"layer", "microbatch", "stage", "arrived_last"}  # -1: none
_MAY_MISS = {"transfer_start"}
_TIMES = {"ready", "start", "transfer_start", "end", "time", "seconds"}  # rounding may turn a zero
_PARTS = [f"{name}_seconds" for name in (
    "compute", "exposed_transfer", "exposed_wait", "host", "idle_before", "idle_after", "idle_dependency",
)]  # fmt: skip


def implausible(result: Result) -> Iterator[Misfit]:
    """What cannot be true of a result whose tables fit together."""
    yield from _numbers("", result, result.step_seconds)
    yield from _times(result)
    yield from _ranks(result)


def _numbers(name: str, value: Any, step: float) -> Iterator[Misfit]:
    """Numbers that are too large for anything, missing or negative, in field ``name`` and all that is in it."""
    if isinstance(value, int | float):
        if isinstance(value, int) and abs(value) > _LARGEST:
            yield name, "is too large"
        elif not value >= _lowest(name, step):
            yield name, f"{value:g} is negative"
    elif isinstance(value, np.ndarray):
        yield from _column(name, value, step)
    elif isinstance(value, msgspec.Struct):
        if not isinstance(value, Labels):
            for field, written in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
                for place, reason in _numbers(written, getattr(value, field), step):
                    yield _within(name, place), reason
    elif isinstance(value, list | dict):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            for place, reason in _numbers("", entry, step):
                yield _within(f"{name}.{key}" if isinstance(value, dict) else f"{name}[{key}]", place), reason


def _within(outer: str, place: str) -> str:
    return ".".join(part for part in (outer, place) if part)


def _lowest(name: str, step: float) -> float:
    if name in _SIGNED:
        return -inf
    if name == "held_by":
        return -2
    if name in _FROM_MINUS_ONE:
        return -1
    return -_CLOSE * step if name in _TIMES or name.endswith("_seconds") else 0


def _column(name: str, column: np.ndarray[Any, Any], step: float) -> Iterator[Misfit]:
    # Frees of what an unknown kind held before the step leave less than nothing of a category of memory.
    lowest = -inf if name == "bytes" and column.dtype.kind == "f" else _lowest(name, step)
    if np.isinf(column).any():
        yield name, "a number is too large"
    elif name not in _MAY_MISS and np.isnan(column).any():
        yield name, "a number is missing"
    elif (column < lowest).any():
        yield name, f"{column[column < lowest][0]:g} is negative"


def _times(result: Result) -> Iterator[Misfit]:
    shown, close = result.shown_seconds, _CLOSE * result.step_seconds
    if shown < -close:
        yield "omitted", f"the periods left out take longer than the step of {result.step_seconds:g} s"
    latest = -inf
    for i, line in enumerate(result.timeline):
        if len(line.end):
            latest = max(latest, float(line.end.max()))
            if latest > shown + close:
                yield f"timeline[{i}].end", f"{latest:g} s is later than the end of the step shown, {shown:g} s"
                return
    if -inf < latest < shown - close:
        yield "step_seconds", f"{result.step_seconds:g} s, but the timeline ends {shown - latest:g} s before"


def _ranks(result: Result) -> Iterator[Misfit]:
    ranges: list[tuple[int, int, int]] = []
    for i, ranks in enumerate(result.ranks):
        try:
            own = _ranges(ranks.ranks)
        except ValueError:
            yield f"ranks[{i}].ranks", f"{ranks.ranks!r} is not a list of ranks such as 0-7,16"
            return
        if sum(last - first + 1 for first, last in own) != ranks.count:
            yield f"ranks[{i}].count", f"{ranks.count} ranks, but {ranks.ranks!r} are not as many"
        ranges += [(first, last, i) for first, last in own]
        yield from _parts(f"ranks[{i}]", ranks, result.step_seconds)
    total = sum(ranks.count for ranks in result.ranks)
    if result.ranks and total != result.world_size:
        yield "world_size", f"{result.world_size}, but the rank classes have {total} ranks"
    ranges.sort()
    for (_, last, _), (first, _, i) in pairwise(ranges):
        if first <= last:
            yield f"ranks[{i}].ranks", f"rank {first} is in two classes"
            return
    if ranges and ranges[-1][1] >= result.world_size:
        yield f"ranks[{ranges[-1][2]}].ranks", f"rank {ranges[-1][1]} is outside the world of {result.world_size}"


def _ranges(text: str) -> list[tuple[int, int]]:
    found = []
    for part in text.split(","):
        first, separator, last = part.partition("-")
        low, high = int(first), int(last if separator else first)
        if not 0 <= low <= high:
            raise ValueError
        found.append((low, high))
    return found


def _parts(place: str, ranks: RankClass, step: float) -> Iterator[Misfit]:
    if ranks.partition is not None:
        total = fsum(getattr(ranks.partition, part) for part in _PARTS)
        if abs(total - step) > _CLOSE * step:
            yield f"{place}.partition", f"its parts make {total:g} s, the step takes {step:g} s"
    if ranks.bubble is not None and ranks.bubble_seconds is not None:
        total = fsum(msgspec.structs.astuple(ranks.bubble))
        if abs(total - ranks.bubble_seconds) > _CLOSE * step:
            yield f"{place}.bubble", f"its causes make {total:g} s, the bubble is {ranks.bubble_seconds:g} s"
