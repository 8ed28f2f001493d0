"""Spans of a result as a CSV file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from emulator import files
from emulator.result.columns import span_columns
from emulator.result.schema import Result


def write(result: Result, path: Path | str) -> None:
    """Write one line per span under a header (gzipped if the name ends in ``.gz``); an empty field is no value."""
    data = encode(result)
    files.write_bytes(path, files.packed(path, data))


def encode(result: Result) -> bytes:
    """The spans as CSV text in UTF-8; times in seconds, written with all their digits."""
    columns = span_columns(result)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    times = [column for name, column in columns.items() if name.endswith("_seconds")]
    absent = {id(column): np.isnan(column).tolist() for column in times}
    values = [
        ["" if empty else value for value, empty in zip(column.tolist(), absent[id(column)], strict=True)]
        if id(column) in absent
        else column.tolist()
        for column in columns.values()
    ]
    writer.writerows(zip(*values, strict=True))
    return out.getvalue().encode()
