"""The report of one replay: step time, what was built and assumed, where the step went, who used the network.

Definitions and formulas are in ``docs/report.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emulator.report import figures
from emulator.report.classes import bars, partitions
from emulator.report.hints import hints
from emulator.report.levers import what_if
from emulator.report.memory import memory
from emulator.report.network_use import collectives, links
from emulator.report.paths import paths, stragglers
from emulator.report.tables import listing
from emulator.result.schema import Result


def render(result: Result, *, width: int) -> RenderableType:
    """The report as text for a terminal (or file) of ``width`` columns. Partitions must have been filled in."""
    blocks: list[RenderableType] = [_headline(result), _facts(result)]
    if any(ranks.partition for ranks in result.ranks):
        blocks += [bars(result, width), *partitions(result, width)]
    blocks += paths(result, width)
    if result.collectives:
        blocks.append(collectives(result, width))
    if result.links:
        blocks.append(links(result, width))
    blocks += memory(result, width)
    blocks += stragglers(result, width)
    blocks += what_if(result, width)
    found = hints(result)
    if found:
        blocks.append(listing("What stands out", [hint.text for hint in found]))
    if result.warnings:
        blocks.append(listing(figures.several(len(result.warnings), "warning"), result.warnings))
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
    if isinstance(parallel, dict):  # an axis of one rank divides nothing: where all are, the job is one rank
        parallel = " x ".join(f"{axis} {extent}" for axis, extent in parallel.items() if extent > 1)
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
            f"{topology.links_carrying_traffic:,} of {topology.links:,} links carry traffic" if topology.links else "",
            separator="; ",
        ),
    )
    fused = f"{device.kernels_recorded:,} recorded kernels timed as {device.kernels_timed:,}"
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
    yield "op times", ", ".join(f"{number:,} {source}" for source, number in result.time_sources.items())
    if result.mfu is not None:
        over = f"over {figures.several(result.world_size, 'rank')} x step x peak"
        counted = f"; counted: {trace.model_flops_note.removeprefix('counted: ')}" if trace.model_flops_note else ""
        yield "MFU", f"{figures.flops(trace.model_flops)} per step {over}{counted}"
    yield (
        "folding",
        (
            f"{figures.several(folding.ranks, 'rank')} in {figures.several(folding.rank_classes, 'class')}, "
            f"{figures.several(folding.groups, 'group')} in {folding.group_classes:,}, "
            f"{figures.several(folding.links, 'link')} in {folding.link_classes:,}"
            if folding.enabled
            else "off: every rank was replayed"
        ),
    )
    if result.engine.events:
        yield (
            "replay",
            (
                f"{result.engine.events:,} events, {result.engine.solves:,} solves, "
                f"{figures.seconds(result.engine.cpu_seconds)} of CPU"
            ),
        )


def _listed(*facts: str, separator: str = ", ") -> str:
    return separator.join(fact for fact in facts if fact)
