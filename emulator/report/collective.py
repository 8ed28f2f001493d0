"""``emu collective`` for people: a table as nccl-tests prints it, and a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Protocol

from rich.console import RenderableType

from emulator.errors import InputError
from emulator.report import figures
from emulator.report.tables import Column, table


class Measured(Protocol):
    """What a row holds (``network.measure.Row``)."""

    @property
    def algorithm(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def bytes(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def algbw(self) -> float | None: ...
    @property
    def busbw(self) -> float | None: ...
    @property
    def chosen(self) -> bool | None: ...


def render(rows: Sequence[Measured], title: str, width: int) -> RenderableType:
    """The table. A star marks what auto takes."""
    columns = [
        Column("bytes", [f"{row.bytes:,.0f}" for row in rows]),
        Column("algorithm", [row.algorithm + " *" * bool(row.chosen) for row in rows], left=True),
        Column("time", [figures.seconds(row.seconds) for row in rows]),
        Column("algbw", [_rate(row.algbw) for row in rows], rank=1),
        Column("busbw", [_rate(row.busbw) for row in rows]),
    ]
    if any(row.protocol for row in rows):
        columns.insert(2, Column("protocol", [row.protocol or "-" for row in rows], rank=2, left=True))
    note = "* what auto takes" if any(row.chosen for row in rows) else ""
    return table(title, columns, width, note)


def _rate(value: float | None) -> str:
    return "-" if value is None else figures.rate(value)


def plot(rows: Sequence[Measured], title: str, form: str) -> bytes:
    """busbw over size, a line per algorithm, as an image of the form ``png``, ``svg`` or ``pdf``."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 -- optional and slow to import
    except ImportError:
        raise InputError("drawing needs matplotlib", source="--plot", remedy="pip install matplotlib") from None
    moved = [(row.algorithm, row.bytes, row.busbw / 1e9) for row in rows if row.busbw is not None]
    if not moved:
        raise InputError("no bytes, no bandwidth to draw", source="--plot")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(algorithm for algorithm, _, _ in moved):
        mine = [(size, busbw) for algorithm, size, busbw in moved if algorithm == name]
        axes.plot(*zip(*mine, strict=True), marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="busbw, GB/s", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    out = io.BytesIO()
    try:
        figure.savefig(out, format=form, dpi=150)
    except ValueError:
        raise InputError(
            f"cannot draw into a {form!r} file", source="--plot", remedy="use .png, .svg or .pdf"
        ) from None
    return out.getvalue()
