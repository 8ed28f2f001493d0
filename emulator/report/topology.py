"""``emu topo show``: a topology in figures."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emulator.report.tables import Column, table
from emulator.topology.show import Description, LevelSummary
from emulator.units import format_rate, format_seconds


def render(found: Description, width: int) -> RenderableType:
    """The description as text for a terminal of ``width`` columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in _facts(found):
        grid.add_row(name, Text(fact))
    return Group(Text(f"{found.name}: {found.built}", style="bold"), grid, _levels(found.levels, width), _ends(found))


def _facts(found: Description) -> Iterator[tuple[str, str]]:
    yield (
        "nodes",
        ", ".join(
            f"{devices:,} {kind}" + (f" (as {nodes:,} nodes)" if nodes != devices else "")
            for kind, (nodes, devices) in found.nodes.items()
        ),
    )
    yield "links", f"{sum(level.links for level in found.levels):,} directed"
    if found.diameter is not None:
        yield "diameter", f"{found.diameter} links between the farthest accelerators"
    if found.bisection is not None:
        yield "bisection", f"{format_rate(found.bisection)} per direction ({found.bisection_note})"
    for tier, factor in found.oversubscription.items():
        yield "oversubscription", f"{tier}: {factor:g}:1"
    yield "routing", found.routing
    if found.power is not None:
        watts = f"{found.power / 1e6:.4g} MW" if found.power >= 1e6 else f"{found.power / 1e3:.4g} kW"
        yield "power", f"{watts} ({found.power_note})"
    yield "device", found.device or "none; give --device"


def _levels(levels: list[LevelSummary], width: int) -> RenderableType:
    return table(
        "Levels, innermost first (bandwidth per direction, as the model uses it)",
        [
            Column("level", [level.name for level in levels], left=True),
            Column("links", [f"{level.links:,}" for level in levels]),
            Column("cables", [f"{level.cables:,}" for level in levels], rank=3),
            Column("per cable", [_span(level.cable_bandwidth, format_rate) for level in levels]),
            Column("latency", [_span(level.latency, format_seconds) for level in levels], rank=1),
            Column("all links", [format_rate(level.total_bandwidth) for level in levels], rank=2),
        ],
        width,
    )


def _span(ends: tuple[float, float], write: object) -> str:
    assert callable(write)
    return str(write(ends[0])) if ends[0] == ends[1] else f"{write(ends[0])} to {write(ends[1])}"


def _ends(found: Description) -> Text:
    text = Text()
    for finding in found.findings:
        text.append(f"\nnote: {finding}")
    if found.sources:
        text.append("\nSources", "bold")
        for source in found.sources:
            text.append(f"\n  {source}")
    return text
