"""``emu compare``: saved results side by side."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from emulator.cli.options import console


def compare(
    results: Annotated[
        list[str], typer.Argument(help="Result files written by `emu run --json`; the first is the base.")
    ],
    width: Annotated[int | None, typer.Option(min=30, help="Columns; default: the terminal's.")] = None,
) -> None:
    """Show several results side by side, with their differences from the first.

    Example: emu compare fattree.json torus.json
    """
    from emulator.report.compare import render  # noqa: PLC0415
    from emulator.result.io import read  # noqa: PLC0415

    out = console(width)
    out.print(render([read(path) for path in results], _names(results), width=out.width))


def _names(paths: list[str]) -> list[str]:
    """File names without folder and ending, or the whole paths where those are not distinct."""
    names = [os.path.basename(path).removesuffix(".gz").removesuffix(".json") for path in paths]
    return names if len(set(names)) == len(names) else paths
