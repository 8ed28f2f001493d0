"""``emu view``: the timeline of a saved result."""

from __future__ import annotations

from typing import Annotated

import typer

from emulator.cli.options import console, seconds_of
from emulator.errors import InputError


def view(
    result: Annotated[str, typer.Argument(help="Result file written by `emu run --json`.")],
    plain: Annotated[bool, typer.Option("--plain", help="Print the timeline, for logs and pipes.")] = False,
    start: Annotated[str, typer.Option("--from", help="Start of the window, e.g. `12 ms`.")] = "0",
    end: Annotated[str | None, typer.Option("--to", help="End of the window; default: the end of the step.")] = None,
    classes: Annotated[list[int] | None, typer.Option("--class", help="Only these rank classes; repeatable.")] = None,
    width: Annotated[int | None, typer.Option(help="Columns; default: the terminal's.")] = None,
) -> None:
    """Show when every stream of every rank class did what.

    Example: emu view result.json --plain --from "20 ms" --to "25 ms"
    """
    if not plain:
        raise InputError("only --plain is there yet", source="emu view", remedy=f"emu view {result} --plain")
    from emulator.result.io import read  # noqa: PLC0415
    from emulator.view.plain import render  # noqa: PLC0415

    out = console(width)
    found = read(result)
    first, last = seconds_of(start, "--from"), None if end is None else seconds_of(end, "--to")
    out.print(render(found, width=out.width, start=first, end=last, classes=classes))
