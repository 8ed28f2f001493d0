"""Spans of a result as a Parquet file, for pandas, Polars, DuckDB and whatever else reads tables."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from emulator import files
from emulator.errors import InputError
from emulator.result.columns import span_columns
from emulator.result.schema import Result


def write(result: Result, path: Path | str) -> None:
    """Write one row per span. Raises InputError where pyarrow is not installed or the file cannot be written."""
    files.write_bytes(path, encode(result))


def encode(result: Result) -> bytes:
    """The spans as a Parquet file (compressed by zstd): text as strings, integers of 64 bits, times as f64 seconds.

    A time that there is none of is null, not nan: averages of a query leave it out. Raises InputError where pyarrow is
    not installed.
    """
    arrow, parquet = _pyarrow()
    columns = {name: _array(arrow, column) for name, column in span_columns(result).items()}
    out = io.BytesIO()
    parquet.write_table(arrow.table(columns), out, compression="zstd")
    return out.getvalue()


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")  # an extra: nothing else needs it
    except ImportError:
        raise InputError(
            "writing Parquet needs pyarrow", source="export", remedy="pip install 'emu-cluster[parquet]'"
        ) from None


def _array(arrow: Any, column: np.ndarray[Any, Any]) -> Any:
    kind = arrow.string() if column.dtype == object else arrow.from_numpy_dtype(column.dtype)
    return arrow.array(column, type=kind, from_pandas=True)  # as pandas means it: nan is null
