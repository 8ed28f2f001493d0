"""The report of one replay: step time, what was built and assumed, where the step went, who used the network.

Definitions and formulas are in ``docs/report.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emulator.report import figures
from emulator.report.palette import PARTS, legend
from emulator.report.tables import Column, table
from emulator.result.schema import Partition, RankClass, Result

CLASSES_SHOWN = 8
COLLECTIVES_SHOWN = 20
LINKS_SHOWN = 10

_LINES: tuple[tuple[str, str], ...] = (
    ("compute", "compute"),
    ("exposed_transfer", "exposed transfer"),
    ("exposed_wait", "exposed wait"),
    ("host", "host"),
    ("idle_before", "idle before first op"),
    ("idle_after", "idle after last op"),
    ("idle_dependency", "idle, dependency"),
)


def render(result: Result, *, width: int) -> RenderableType:
    """The report as text for a terminal (or file) of ``width`` columns. Partitions must have been filled in."""
    blocks: list[RenderableType] = [_headline(result), _facts(result)]
    if any(ranks.partition for ranks in result.ranks):
        blocks += [_bars(result, width), *_partitions(result, width)]
    if result.collectives:
        blocks.append(_collectives(result, width))
    if result.links:
        blocks.append(_links(result, width))
    if result.warnings:
        blocks.append(_warnings(result))
    return Group(*blocks)


def _headline(result: Result) -> Text:
    job = " on ".join(name for name in (result.trace.model or result.trace.file, result.topology.name) if name)
    text = Text.assemble((f"{job}: " if job else "", "bold"), (f"step {figures.seconds(result.step_seconds)}", "bold"))
    if result.tokens_per_second is not None:
        text.append(f", {figures.count(result.tokens_per_second)} tokens/s", "bold")
    if result.mfu is not None:
        text.append(f", MFU {figures.percent(result.mfu)} of the peak", "bold")
    return text


def _facts(result: Result) -> Table:
    """Everything the figures stand on, one line each: job, fabric, device, sources of times, folding."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in _fact_lines(result):
        if fact:
            grid.add_row(name, Text(fact))
    return grid


def _fact_lines(result: Result) -> Iterator[tuple[str, str]]:
    trace, topology, device, folding = result.trace, result.topology, result.device, result.folding
    parallel = trace.parallel
    if isinstance(parallel, dict):
        parallel = " x ".join(f"{axis} {extent}" for axis, extent in parallel.items())
    yield (
        "job",
        _listed(
            trace.file,
            trace.model,
            f"{figures.count(trace.params)} parameters" if trace.params else "",
            trace.dtype,
            parallel,
            figures.several(result.world_size, "rank"),
            f"{figures.count(trace.tokens_per_step)} tokens per step" if trace.tokens_per_step else "",
            f"recorded from {trace.source}" if trace.source else "",
        ),
    )
    overrides = ", ".join(f"{key}={value}" for key, value in topology.overrides.items())
    yield (
        "topology",
        _listed(
            topology.built,
            f"set {overrides}" if overrides else "",
            f"{topology.routing} routing" if topology.routing else "",
            f"{topology.links_carrying_traffic} of {topology.links} links carry traffic" if topology.links else "",
            separator="; ",
        ),
    )
    fused = f"{device.kernels_recorded} recorded kernels timed as {device.kernels_timed}"
    yield (
        "device",
        _listed(
            device.name,
            f"peak {figures.flops(device.peak_flops)}/s {device.peak_dtype}" if device.peak_flops else "",
            device.model,
            f"lowering {device.lowering}" if device.lowering else "",
            fused if device.kernels_recorded else "",
        ),
    )
    yield "op times", ", ".join(f"{number} {source}" for source, number in result.time_sources.items())
    if result.mfu is not None:
        over = f"over {figures.several(result.world_size, 'rank')} x step x peak"
        counted = f"; counted: {trace.model_flops_note}" if trace.model_flops_note else ""
        yield "MFU", f"{figures.flops(trace.model_flops)} per step {over}{counted}"
    yield (
        "folding",
        (
            f"{figures.several(folding.ranks, 'rank')} in {figures.several(folding.rank_classes, 'class')}, "
            f"{figures.several(folding.groups, 'group')} in {folding.group_classes}, "
            f"{figures.several(folding.links, 'link')} in {folding.link_classes}"
            if folding.enabled
            else "off: every rank was replayed"
        ),
    )
    if result.engine.events:
        yield (
            "replay",
            (
                f"{result.engine.events} events, {result.engine.solves} solves, "
                f"{figures.seconds(result.engine.cpu_seconds)} of CPU"
            ),
        )


def _listed(*facts: str, separator: str = ", ") -> str:
    return separator.join(fact for fact in facts if fact)


def _shown(result: Result) -> list[RankClass]:
    return [ranks for ranks in result.ranks if ranks.partition][:CLASSES_SHOWN]


def _bars(result: Result, width: int) -> Text:
    """One stacked bar per rank class, as long as the step."""
    text = Text("\nWhere the step goes", style="bold")
    text.append(f" (each bar is the step, {figures.seconds(result.step_seconds)})\n", "not bold")
    shown = _shown(result)
    names = [_class_name(ranks) for ranks in shown]
    label = min(max(map(len, names)), max(8, width // 3))
    for ranks, name in zip(shown, names, strict=True):
        text.append(f"{name[:label]:<{label}} ", "not bold")
        text.append_text(stacked_bar(_fractions(ranks.partition, result.step_seconds), width - label - 1))
        text.append("\n")
    text.append_text(
        legend([(letter, name.replace("_", " "), style) for name, (letter, style) in PARTS.items()], width)
    )
    hidden = len(result.ranks) - len(shown)
    if hidden:
        text.append(f"\n{f'{hidden} more'} not shown: see `ranks` in the JSON.", "not bold")
    return text


def _class_name(ranks: RankClass) -> str:
    return f"rank {ranks.ranks}" if ranks.count == 1 else f"{ranks.count} ranks: {ranks.ranks}"


def _fractions(partition: Partition | None, step_seconds: float) -> dict[str, float]:
    if partition is None or not step_seconds:
        return {"idle": 1.0}
    found = {name: getattr(partition, f"{name}_seconds") / step_seconds for name in PARTS if name != "idle"}
    return {**found, "idle": max(0.0, 1.0 - sum(found.values()))}


def stacked_bar(fractions: dict[str, float], width: int) -> Text:
    """Parts that add up to one as a bar of exactly ``width`` letters; what is left by rounding down goes to the parts
    that lost most by it.
    """
    ideal = {name: fraction * width for name, fraction in fractions.items()}
    cells = {name: int(value + 1e-9) for name, value in ideal.items()}
    for name in sorted(ideal, key=lambda name: cells[name] - ideal[name])[: max(0, width - sum(cells.values()))]:
        cells[name] += 1
    bar = Text()
    for name, number in cells.items():
        bar.append(PARTS[name][0] * number, PARTS[name][1])
    return bar


def _partitions(result: Result, width: int) -> Iterator[RenderableType]:
    """The partition in figures: a row per line, a column per class, in as many tables as the width asks for."""
    step = result.step_seconds
    classes = [(ranks, ranks.partition) for ranks in _shown(result) if ranks.partition]
    piped = any(ranks.bubble_seconds is not None for ranks, _ in classes)
    names = [label for _, label in _LINES]
    names += ["sum", "", "hidden transfer", "hidden wait", "communication", "overlap"] + ["bubble"] * piped
    columns = [
        Column(
            f"{figures.several(ranks.count, 'rank')}\n{_shortened(ranks.ranks, 18)}",
            _figures(ranks, found, step, piped),
        )
        for ranks, found in classes
    ]
    label = Column("", names, left=True)
    start = 0
    while start < len(columns):
        end = start + 1
        while end < len(columns) and sum(c.width for c in [label, *columns[start : end + 1]]) <= width:
            end += 1
        last = end == len(columns)
        note = "Percentages are of the step; overlap is hidden transfer, % of all transfer."
        yield table("Rank classes", [label, *columns[start:end]], width, note if last else "")
        start = end


def _figures(ranks: RankClass, found: Partition, step: float, piped: bool) -> list[str]:
    def figure(value: float) -> str:
        return f"{figures.seconds(value):>8} {figures.percent(value, step):>7}"

    parts = [getattr(found, f"{name}_seconds") for name, _ in _LINES]
    overlap = "no transfer" if found.overlap is None else figures.percent(found.overlap)
    beside = (found.hidden_transfer_seconds, found.hidden_wait_seconds, found.communication_seconds)
    cells = [*map(figure, parts), figure(sum(parts)), "", *map(figure, beside), overlap]
    if piped:
        cells.append("-" if ranks.bubble_seconds is None else figure(ranks.bubble_seconds))
    return cells


def _collectives(result: Result, width: int) -> RenderableType:
    used = sorted(result.collectives, key=lambda use: -use.count * (use.seconds + use.wait_seconds))
    shown = used[:COLLECTIVES_SHOWN]
    several_classes = len({use.rank_class for use in used}) > 1
    columns = [
        Column("kind", [use.collective for use in shown], left=True),
        Column("group", [use.group for use in shown], left=True),
        Column("ranks", [str(use.group_size) for use in shown], 5),
        *([Column("of class", [str(use.rank_class) for use in shown], 6)] if several_classes else []),
        Column("count", [str(use.count) for use in shown]),
        Column("bytes", [figures.size(use.bytes) for use in shown], 1),
        Column("dtype", [use.dtype for use in shown], 9, left=True),
        Column("algorithm", [use.algorithm for use in shown], 2, left=True),
        Column("time", [figures.seconds(use.seconds) for use in shown]),
        Column("alone", [figures.seconds(use.alone_seconds) for use in shown], 4),
        Column("congestion\n% of time", [_or_dash(use.congestion, figures.percent) for use in shown], 8),
        Column("wait", [figures.seconds(use.wait_seconds) for use in shown], 3),
        Column("algbw", [_or_dash(use.algbw_bytes_per_second, figures.rate) for use in shown], 7),
        Column("busbw", [_or_dash(use.busbw_bytes_per_second, figures.rate) for use in shown], 1),
    ]
    note = "Means per execution: time from the last arrival to the end, wait before it; alone: on the idle fabric."
    if len(used) > len(shown):
        note += f" {len(used) - len(shown)} more in the JSON."
    return table("Communication", columns, width, note)


def _links(result: Result, width: int) -> RenderableType:
    shown = sorted(result.links, key=lambda use: (-use.utilisation, use.link))[:LINKS_SHOWN]
    columns = [
        Column("link", [use.link for use in shown], left=True),
        Column("level", [use.level for use in shown], 2, left=True),
        Column("alike", [str(use.count) for use in shown], 4),
        Column("capacity", [figures.rate(use.capacity_bytes_per_second) for use in shown], 3),
        Column("carried", [figures.size(use.bytes) for use in shown], 1),
        Column("used", [figures.percent(use.utilisation) for use in shown]),
        Column("by", [_shortened(", ".join(use.groups), 24) for use in shown], left=True),
    ]
    return table("Hottest links", columns, width, "used: bytes carried, % of capacity x step; one direction each.")


def _warnings(result: Result) -> Text:
    text = Text(f"\n{figures.several(len(result.warnings), 'warning')}\n", style="bold")
    text.append("\n".join(f"  - {warning}" for warning in result.warnings), "not bold")
    return text


def _or_dash(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
