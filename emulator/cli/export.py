"""``emu export``: a saved result for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator.errors import InputError
from emulator.files import check_writable


def export(
    result: Annotated[str, typer.Argument(help="Result file written by `emu run --json`.")],
    file: Annotated[str, typer.Argument(help="FILE.json: a trace for Perfetto; FILE.csv: one line per span; or .gz.")],
) -> None:
    """Write a saved result for another tool: a trace for Perfetto (ui.perfetto.dev) or a table of all spans.

    Example: emu export result.json trace.json.gz
    """
    plain = file.removesuffix(".gz")
    if not plain.endswith((".json", ".csv")):
        raise InputError(
            "the ending names no format", source=file, remedy="use .json (Perfetto) or .csv, or either with .gz"
        )
    check_writable(Path(file))
    from emulator.report import csv_table, perfetto  # noqa: PLC0415
    from emulator.result.io import read  # noqa: PLC0415

    write = csv_table.write if plain.endswith(".csv") else perfetto.write
    write(read(result), file)
