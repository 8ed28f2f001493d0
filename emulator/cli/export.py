"""``emu export``: a saved result for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator.errors import InputError
from emulator.files import check_writable

ENDINGS = (".json", ".json.gz", ".csv", ".csv.gz", ".parquet")


def export(
    result: Annotated[str, typer.Argument(help="Result file written by `emu run --json`.")],
    file: Annotated[
        str,
        typer.Argument(
            help="FILE.json: a trace for Perfetto; FILE.csv: one line per span; either may end in .gz; FILE.parquet: "
            "the same table (pyarrow)."
        ),
    ],
) -> None:
    """Write a saved result for another tool: a trace for Perfetto (ui.perfetto.dev) or a table of all spans.

    Example: emu export result.json trace.json.gz
    """
    ending = next((ending for ending in ENDINGS if file.endswith(ending)), None)
    if ending is None:
        raise InputError(
            "the ending names no format",
            source=file,
            remedy="use .json (Perfetto) or .csv, or either with .gz, or .parquet (compressed inside)",
        )
    check_writable(Path(file))
    from emulator.report import csv_table, parquet, perfetto  # noqa: PLC0415
    from emulator.result.io import read  # noqa: PLC0415

    writers = {".json": perfetto.write, ".csv": csv_table.write, ".parquet": parquet.write}
    writers[ending.removesuffix(".gz")](read(result), file)
