"""A result as plain tables: one row per span, or per stretch of the critical path, columns as arrays.

What ``Result.spans()`` and ``Result.to_pandas()`` give, and CSV and Parquet files hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.result.schema import Result
from emulator.result.tables import Labels, OpTable

Columns = dict[str, np.ndarray[Any, Any]]

_TEXT = (
    "name", "kind", "op_class", "phase", "module", "group", "collective", "algorithm", "peer", "time_source",
)  # fmt: skip
_NUMBERS = ("layer", "microbatch", "stage", "bytes", "flops")
_TIMES = ("ready", "start", "transfer_start", "end")


def span_columns(result: Result, classes: Sequence[int] | None = None) -> Columns:
    """Every span of every rank class (or of some), in order of class, stream and start.

    Columns: ``rank_class``, ``ranks`` (as ranges), ``stream``, ``op`` (row of the class's program), what the op is, and
    ``ready_seconds``, ``start_seconds``, ``transfer_start_seconds`` (nan without participants), ``end_seconds``.
    """
    wanted = range(len(result.ranks)) if classes is None else classes
    lines = [line for line in result.timeline if line.rank_class in wanted]
    lengths = [len(line.op) for line in lines]
    tables = [result.programs[result.ranks[line.rank_class].program] for line in lines]
    columns: Columns = {
        "rank_class": np.repeat(np.array([line.rank_class for line in lines], dtype=np.int64), lengths),
        "ranks": np.repeat(np.array([result.ranks[line.rank_class].ranks for line in lines], dtype=object), lengths),
        "stream": np.repeat(np.array([line.stream for line in lines], dtype=object), lengths),
        "op": _joined([line.op for line in lines], np.int64),
    }
    for name in (*_TEXT, *_NUMBERS):
        columns[name] = _joined([_picked(t, name, line.op) for t, line in zip(tables, lines, strict=True)], object)
        if name in _NUMBERS:
            columns[name] = columns[name].astype(np.float64 if name == "flops" else np.int64)
    for name in _TIMES:
        columns[f"{name}_seconds"] = _joined([getattr(line, name) for line in lines], np.float64)
    return columns


def path_columns(result: Result) -> Columns:
    """The stretches of the critical path from the start of the step to its end; empty where it was not worked out."""
    path = result.path
    if path is None or not len(path.op):
        return {}
    classes, rows = path.rank_class[::-1], path.op[::-1]
    tables = [result.programs[ranks.program] for ranks in result.ranks]
    columns: Columns = {"rank_class": classes, "op": rows, "what": _text(path.what)[::-1]}
    for name in (*_TEXT, *_NUMBERS):
        column = np.empty(len(rows), dtype=object)
        for rank_class in np.unique(classes).tolist():
            own = classes == rank_class
            column[own] = _picked(tables[rank_class], name, rows[own])
        columns[name] = column if name in _TEXT else column.astype(np.float64 if name == "flops" else np.int64)
    columns["start_seconds"], columns["end_seconds"] = path.start[::-1], path.end[::-1]
    columns["repeats"] = path.repeats[::-1]
    return columns


def _picked(table: OpTable, name: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    column = getattr(table, name)
    if isinstance(column, Labels):
        values = np.array([*column.values, ""], dtype=object)  # never empty, so that it can be indexed
        return np.asarray(values[column.codes[rows]])
    return np.asarray(column[rows])


def _text(column: Labels) -> np.ndarray[Any, Any]:
    return np.asarray(np.array([*column.values, ""], dtype=object)[column.codes])


def _joined(parts: Sequence[np.ndarray[Any, Any]], dtype: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([np.empty(0, dtype=dtype), *(np.asarray(part, dtype=dtype) for part in parts)])
