"""``emu view``: the timeline of a saved result."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli.options import console, seconds_of
from emulator.errors import InputError
from emulator.outputs import Output, check_outputs

if TYPE_CHECKING:
    from emulator.result.schema import Result


def view(
    result: Annotated[str, typer.Argument(help="Result file written by `emu run --json`.")],
    plain: Annotated[bool, typer.Option("--plain", help="Print the timeline, for logs and pipes.")] = False,
    svg: Annotated[str | None, typer.Option(metavar="FILE", help="Write the timeline as an SVG picture.")] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write the timeline as a PNG picture.")] = None,
    start: Annotated[str, typer.Option("--from", help="Start of the window, e.g. `12 ms`.")] = "0",
    end: Annotated[str | None, typer.Option("--to", help="End of the window; default: the end of the step.")] = None,
    classes: Annotated[list[int] | None, typer.Option("--class", help="Only these rank classes; repeatable.")] = None,
    width: Annotated[int | None, typer.Option(min=30, help="Columns; default: the terminal's, 120 for SVG.")] = None,
) -> None:
    """Show when every stream of every rank class did what: interactive, or with --plain, --svg, --png as it stands.

    In the interactive timeline `?` shows the keys.

    Example: emu view result.json --plain --from "20 ms" --to "25 ms"
    """
    check_outputs([Output("--svg", svg, (".svg",)), Output("--png", png, (".png",))], {"the result": result})
    from emulator.result.io import read  # noqa: PLC0415

    first, last = seconds_of(start, "--from"), None if end is None else seconds_of(end, "--to")
    found = read(result)
    if svg or png:
        from emulator import files  # noqa: PLC0415
        from emulator.view import picture  # noqa: PLC0415

        if svg:
            document = picture.svg(found, width=width or 120, start=first, end=last, classes=classes)
            files.write_text(svg, document)
        if png:
            files.write_bytes(png, picture.png(found, start=first, end=last, classes=classes))
    if plain:
        from emulator.view.plain import render  # noqa: PLC0415

        out = console(width)
        out.print(render(found, width=out.width, start=first, end=last, classes=classes))
    elif not (svg or png):
        _interactive(found, result, first, last)


def _interactive(found: Result, path: str, first: float, last: float | None) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise InputError("the interactive timeline needs a terminal", source=path, remedy=f"emu view {path} --plain")
    from emulator.view.app import show  # noqa: PLC0415  (textual costs start-up time)

    show(found, first, last)
