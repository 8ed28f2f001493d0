"""``emu export``: a saved result for other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from emulator.outputs import Output, check_outputs

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
    check_outputs([Output("FILE", file, ENDINGS, told=True)], {"the result": result})
    ending = next(ending for ending in ENDINGS if file.lower().endswith(ending))
    from emulator.report import csv_table, parquet, perfetto  # noqa: PLC0415
    from emulator.result.io import read  # noqa: PLC0415

    writers = {".json": perfetto.write, ".csv": csv_table.write, ".parquet": parquet.write}
    writers[ending.removesuffix(".gz")](read(result), file)
