"""``emu report``: the report of a saved result."""

from __future__ import annotations

from typing import Annotated

import typer

from emulator.cli.options import console


def report(
    result: Annotated[str, typer.Argument(help="Result file written by `emu run --json`.")],
    width: Annotated[int | None, typer.Option(min=30, help="Columns; default: the terminal's.")] = None,
) -> None:
    """Report where the time of a saved result went."""
    from emulator.report.summary import render  # noqa: PLC0415
    from emulator.result.io import read  # noqa: PLC0415

    out = console(width)
    out.print(render(read(result), width=out.width))
