"""Tables that fit any width: the least important columns go first, and the table says which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_PADDING = 3  # columns of space that a column of the table takes beside its text: one each side, one between


@dataclass(frozen=True)
class Column:
    """One column. The higher its ``rank`` the sooner it is left out where space is short; rank 0 always stays."""

    header: str
    cells: Sequence[str]
    rank: int = 0
    left: bool = False

    @property
    def width(self) -> int:
        """Columns of the terminal that the widest line takes."""
        lines = [line for cell in (self.header, *self.cells) for line in cell.split("\n")]
        return max(map(len, lines)) + _PADDING


def in_groups(label: Column, columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """As many columns at a time as fit beside ``label``, one at least; the label comes first in each group."""
    start = 0
    while start < len(columns):
        end = start + 1
        while end < len(columns) and sum(c.width for c in [label, *columns[start : end + 1]]) <= width:
            end += 1
        yield [label, *columns[start:end]]
        start = end


def fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], list[Column]]:
    """Which columns fit into a width, and which were left out for it."""
    kept, out = list(columns), []
    while sum(column.width for column in kept) > width:
        least = max(kept, key=lambda column: column.rank)
        if least.rank == 0:
            break  # what remains is wrapped by the table
        kept.remove(least)
        out.append(least)
    return kept, [column for column in columns if column in out]


def table(title: str, columns: Sequence[Column], width: int, note: str = "") -> RenderableType:
    """A table under a title, not wider than ``width``."""
    kept, out = fitting(columns, width)
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=True, show_edge=False, header_style="bold")
    for column in kept:
        justify = "left" if column.left else "right"
        drawn.add_column(column.header, justify=justify, overflow="fold", no_wrap=column.rank > 0)  # type: ignore[arg-type]
    for row in zip(*(column.cells for column in kept), strict=True):
        drawn.add_row(*(Text(cell) for cell in row))
    parts: list[RenderableType] = [Text(f"\n{title}", style="bold"), drawn]
    if note:
        parts.append(Text(note))
    if out:
        names = ", ".join(column.header.replace("\n", " ") for column in out)
        parts.append(Text(f"No room at this width for: {names}."))
    return Group(*parts)


def shortened(text: str, length: int) -> str:
    """A text of at most ``length`` characters, with dots where something is missing."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def listing(title: str, lines: Sequence[str]) -> RenderableType:
    """A list under a title; lines that wrap stay behind their dash."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("  -", Text(line))
    return Group(Text(f"\n{title}", style="bold"), grid)
