"""Memory over time: what allocations and frees of the replayed ops add up to, its peak, and the report's part on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from emulator.report import figures
from emulator.report.holding import Spans
from emulator.report.tables import Column, shortened, table
from emulator.result.schema import Omitted, Result
from emulator.result.tables import Floats, MemoryUse, OpTable

CLASSES_SHOWN = 8


def memory_use(
    program: OpTable, spans: Spans, rank_class: int, resident: Mapping[str, float], omitted: Sequence[Omitted] = ()
) -> list[MemoryUse]:
    """Bytes alive on each rank of a class, by category; nothing for a program without memory events.

    An alloc counts from its end on, a free from its end on no more. ``resident`` (bytes by kind) was alive before the
    step; where more of a category is freed than that and the allocs before give, so much more was. What a period that
    is shown once leaves behind counts for the ``omitted`` ones from their place on.
    """
    if program.category is None or program.memory_bytes is None:
        return []
    rows = np.flatnonzero((program.memory_bytes != 0) & ~np.isnan(spans.end))
    rows = rows[np.argsort(spans.end[rows], kind="stable")]
    found = []
    codes = program.category.codes[rows]
    names = [program.category.values[code] for code in np.unique(codes).tolist()]
    for name in [*names, *(kind for kind in resident if kind not in names)]:
        own = rows[codes == program.category.values.index(name)] if name in names else rows[:0]
        time, change = _with_omitted(spans.end[own], program.memory_bytes[own].astype(np.float64), omitted)
        alive = np.cumsum(np.concatenate([[0.0], change]))
        alive += max(float(resident.get(name, 0.0)), -float(alive.min()))
        time = np.concatenate([[0.0], time])
        last = np.append(np.diff(time) > 0, True)  # of what happens at one moment the outcome counts
        found.append(MemoryUse(rank_class, name or "other", time[last], alive[last]))
    return found


def in_all(uses: Sequence[MemoryUse]) -> tuple[Floats, list[Floats]]:
    """The moments at which any of the uses changes, and the bytes of each from then on."""
    times = np.unique(np.concatenate([use.time for use in uses]))
    return times, [_held(use, times) for use in uses]


@dataclass(frozen=True)
class Peak:
    """Most bytes alive at once on each rank of a class, when first (s), and the categories then."""

    rank_class: int
    bytes: float
    seconds: float
    categories: dict[str, float]


def peaks(result: Result) -> list[Peak]:
    """The peak of every rank class with memory events, the highest first."""
    found = []
    for rank_class in sorted({use.rank_class for use in result.memory}):
        uses = [use for use in result.memory if use.rank_class == rank_class]
        times, each = in_all(uses)
        total = np.sum(each, axis=0)
        at = int(total.argmax())
        parts = {use.category: float(own[at]) for use, own in zip(uses, each, strict=True)}
        found.append(Peak(rank_class, float(total[at]), float(times[at]), parts))
    return sorted(found, key=lambda peak: (-peak.bytes, peak.rank_class))


def memory(result: Result, width: int) -> Iterator[RenderableType]:
    """A table of the peaks by rank class, the highest first; without memory events what is resident, if it is known."""
    resident = result.trace.resident
    if not result.memory:
        if resident:
            whole = sum(resident.values())
            parts = ", ".join(f"{figures.size(size)} {kind}" for kind, size in resident.items())
            yield Text.assemble(
                ("\nMemory", "bold"),
                f"\nNo memory events in this trace. Resident before the step: {figures.size(whole)}"
                f"{_of_device(result, whole)} per rank ({parts}).",
            )
        return
    found = peaks(result)
    shown = found[:CLASSES_SHOWN]
    device = result.device
    columns = [
        Column("ranks", [shortened(result.ranks[peak.rank_class].ranks, 24) for peak in shown], left=True),
        Column("peak", [figures.size(peak.bytes) for peak in shown]),
        Column("at", [figures.seconds(peak.seconds) for peak in shown]),
    ]
    if device.memory_bytes:
        columns.append(Column("of the\ndevice", [figures.percent(peak.bytes, device.memory_bytes) for peak in shown]))
    most = {name: max(p.categories.get(name, 0.0) for p in shown) for peak in shown for name in peak.categories}
    columns += [  # the largest first; the smallest have to go first where space is short
        Column(name, [figures.size(peak.categories.get(name, 0.0)) for peak in shown], rank)
        for rank, name in enumerate(sorted(most, key=lambda name: -most[name]), 1)
    ]
    note = (
        "From the trace's allocations and frees: bytes alive on each rank at its peak, by category; blocks that an "
        "allocator keeps are not in it."
    )
    if device.memory_bytes and found[0].bytes > device.memory_bytes:
        note += f" It does not fit into the {figures.size(device.memory_bytes)} of {device.name}."
    if len(found) > len(shown):
        note += f" {len(found) - len(shown)} more with less: see `memory` in the JSON."
    yield table("Memory", columns, width, note)


def _of_device(result: Result, size: float) -> str:
    most = result.device.memory_bytes
    return f", {figures.percent(size, most)} of the {figures.size(most)} of {result.device.name}," if most else ""


def _with_omitted(time: Floats, change: Floats, omitted: Sequence[Omitted]) -> tuple[Floats, Floats]:
    """Changes with those that omitted periods add up to where they were left out."""
    for jump in omitted:
        inside = (time >= jump.at_seconds - jump.period_seconds) & (time < jump.at_seconds)
        at = int(np.searchsorted(time, jump.at_seconds))
        left = float(change[inside].sum()) * jump.count
        time, change = np.insert(time, at, jump.at_seconds), np.insert(change, at, left)
    return time, change


def _held(use: MemoryUse, at: Floats) -> Floats:
    index = np.searchsorted(use.time, at, "right") - 1
    return np.where(index >= 0, use.bytes[np.maximum(index, 0)], 0.0)
