"""Links and memory over a window of time, as lines of text: ten levels from 0 to 9, so that no colour is needed."""

from __future__ import annotations

import numpy as np

from emulator.report import figures
from emulator.report.memory import in_all
from emulator.result.schema import Result
from emulator.result.tables import Floats
from emulator.view.plain import clipped
from emulator.view.window import Window


def mean_per_cell(time: Floats, value: Floats, edges: Floats) -> Floats:
    """Mean over each cell of a quantity that is ``value[i]`` from ``time[i]`` on, and nothing before ``time[0]``."""
    if not len(time):
        return np.zeros(len(edges) - 1)
    total = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    at = np.searchsorted(time, edges, "right") - 1
    before = np.where(at >= 0, total[at] + value[at] * (edges - time[at]), 0.0)
    return np.asarray(np.diff(before) / np.diff(edges), dtype=np.float64)


def digits(values: Floats, most: float) -> str:
    """Values as tenths of the most there can be: ``.`` nothing, ``0`` below a tenth, ..., ``9`` from nine tenths on."""
    tenths = (
        np.clip((values / most * 10 + 1e-9).astype(np.int64), 0, 9)
        if most > 0
        else np.zeros(len(values), dtype=np.int64)
    )
    return "".join("." if value <= 0 else str(tenth) for value, tenth in zip(values, tenths, strict=True))


def links(result: Result, window: Window, label: int, cells: int) -> list[str]:
    """Load of the busiest links, in tenths of their capacity; their totals where the result has no loads over time."""
    capacity = {use.link: use for use in result.links}
    edges = np.linspace(window.start, window.end, cells + 1)
    lines = []
    for load in result.link_loads:
        use = capacity.get(load.link)
        most = use.capacity_bytes_per_second if use else float(load.rate.max(initial=0.0))
        row = digits(mean_per_cell(load.time, load.rate, edges), most)
        lines.append(f"{clipped(load.link, label - 1):<{label}}{row}")
    if lines:
        return [*lines, "digits: load in tenths of the link's capacity, one direction"]
    totals = [
        f"{use.link} ({use.level}, {use.count} alike): {figures.percent(use.utilisation)} of "
        f"{figures.rate(use.capacity_bytes_per_second)} x step, by {', '.join(use.groups)}"
        for use in sorted(result.links, key=lambda use: -use.utilisation)
    ]
    return ["This result has no link loads over time; over the whole step:", *totals]


def memory(result: Result, window: Window, label: int, cells: int, rank_class: int) -> list[str]:
    """Bytes on each rank of a class, by category and in all, in tenths of the device's memory (or of the peak)."""
    own = [use for use in result.memory if use.rank_class == rank_class]
    if not own:
        kept = ", ".join(f"{figures.size(size)} {kind}" for kind, size in result.trace.resident.items())
        known = f" Resident before the step: {kept}." if kept else ""
        return [f"This result has no memory over time: no memory events in this trace.{known}"]
    edges = np.linspace(window.start, window.end, cells + 1)
    times, each = in_all(own)
    total = np.sum(each, axis=0)
    peak = float(total.max(initial=0.0))
    most = result.device.memory_bytes or peak
    lines = [f"{'all':<{label}}{digits(mean_per_cell(times, total, edges), most)}"]
    for use, value in zip(own, each, strict=True):
        lines.append(f"{clipped(use.category, label - 1):<{label}}{digits(mean_per_cell(times, value, edges), most)}")
    when = figures.seconds(float(times[int(total.argmax())]))
    whole = f"of {figures.size(most)} on {result.device.name}" if result.device.memory_bytes else "at the peak"
    return [*lines, f"peak {figures.size(peak)} at {when}; digits: tenths {whole}"]
