"""Reading and writing results: one JSON document, with long columns in a NumPy file beside it.

A column is a list in the JSON (nan as null). Where all columns together would be more than 10 MB of JSON they go to
``F.spans.npz``, named in ``timeline_file``; each then reads as the name of its array in that file.
"""

from __future__ import annotations

import io
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from emulator import files
from emulator.errors import InputError
from emulator.result.check import check
from emulator.result.schema import SCHEMA, Result
from emulator.result.tables import Labels
from emulator.unpack import read_text_bytes

INLINE_LIMIT_BYTES = 10_000_000
COLUMNS_SUFFIX = ".spans.npz"

Column = np.ndarray[Any, Any]


class _Header(msgspec.Struct):
    schema: str = ""


def encode(result: Result) -> bytes:
    """A result as one JSON document, columns included; equal results give equal bytes."""
    return msgspec.json.encode(result, enc_hook=_as_list) + b"\n"


def write(result: Result, path: Path | str) -> None:
    """Write a result to a file (gzipped if it ends in ``.gz``), or to stdout if ``path`` is ``-``.

    Raises InputError if the file cannot be written; nothing is left behind then.
    """
    if str(path) == "-":
        sys.stdout.write(encode(result).decode())
        sys.stdout.flush()
        return
    columns = dict(_columns(result))
    contents: dict[Path | str, bytes] = {}
    if _inline_bytes(result, columns) > INLINE_LIMIT_BYTES:
        beside = Path(f"{path}{COLUMNS_SUFFIX}")
        contents[beside] = _pack(columns)
        names = {id(column): name for name, column in columns.items()}
        named = msgspec.structs.replace(result, timeline_file=beside.name)
        data = msgspec.json.encode(named, enc_hook=lambda column: names[id(column)]) + b"\n"
    else:
        data = encode(result)
    contents[path] = files.packed(path, data)
    files.write_together(contents)


def read(path: Path | str) -> Result:
    """Read a result. Raises InputError (file, place, reason) on anything that is not a well-formed one."""
    source = str(path)
    data = read_text_bytes(path)
    if not data.strip():
        raise InputError("the file is empty", source=source)
    header = _decode(data, _Header, source, _list_only)
    if header.schema != SCHEMA:
        what = f"schema is {header.schema!r}" if header.schema else 'there is no "schema" key'
        remedy = "`emu run --json FILE` writes one"
        raise InputError(f"not a result: {what}, this version reads {SCHEMA!r}", source=source, remedy=remedy)
    result: Result = _decode(data, Result, source, _column_reader(Path(path)))
    check(result, source)
    return msgspec.structs.replace(result, timeline_file=None)


def _columns(result: Result) -> Iterator[tuple[str, Column]]:
    """Every column with its name, such as ``programs.0.name.codes`` or ``timeline.3.start``."""
    for part, tables in _tables(result).items():
        for i, table in enumerate(tables):
            for field in table.__struct_fields__:
                value = getattr(table, field)
                if isinstance(value, Labels):
                    yield f"{part}.{i}.{field}.codes", value.codes
                elif isinstance(value, np.ndarray):
                    yield f"{part}.{i}.{field}", value


def _tables(result: Result) -> dict[str, Sequence[msgspec.Struct]]:
    """Everything that has columns, by its name in the document."""
    path = [] if result.path is None else [result.path]
    return {
        "programs": result.programs,
        "timeline": result.timeline,
        "critical_path": path,
        "link_loads": result.link_loads,
        "memory": result.memory,
        "compute_rates": result.compute_rates,
    }


def _inline_bytes(result: Result, columns: dict[str, Column]) -> int:
    """Bytes of JSON that the columns take, or a lower bound of them where that decides already."""
    at_least = 2 * sum(column.size for column in columns.values())  # a digit and a comma each
    if at_least > INLINE_LIMIT_BYTES:
        return at_least
    return len(msgspec.json.encode(_tables(result), enc_hook=_as_list))


def _pack(columns: dict[str, Column]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **columns)  # type: ignore[arg-type]  # numpy's stub takes its own options for array names
    return buffer.getvalue()


def _as_list(column: Any) -> Any:
    if isinstance(column, np.ndarray | np.generic):
        return column.tolist()
    raise NotImplementedError(f"cannot write a {type(column).__name__}")


def _column_reader(path: Path) -> Callable[[Any, Any], Column]:
    """A decoding hook that takes a list, or the name of an array in the file beside ``path``."""
    beside = Path(f"{path}{COLUMNS_SUFFIX}")
    arrays: dict[str, Column] = {}

    def read_column(kind: Any, value: Any) -> Column:
        dtype = get_args(get_args(kind)[1])[0]
        if isinstance(value, str):
            if not arrays:
                arrays.update(_unpack(beside))
            if value not in arrays:
                raise ValueError(f"no array {value!r} in {beside}")
            column = arrays[value]
            if not np.can_cast(column.dtype, dtype, "same_kind"):
                raise ValueError(f"the array {value!r} in {beside} holds {column.dtype}, not {np.dtype(dtype)}")
            return _flat(np.ascontiguousarray(column, dtype=dtype))
        return _list_only(dtype, value)

    return read_column


def _list_only(dtype: Any, value: Any) -> Column:
    if not isinstance(value, list):
        raise ValueError("expected a list of numbers")
    numbers = {int} if np.issubdtype(dtype, np.integer) else {int, float, type(None)}
    what = "an integer" if len(numbers) == 1 else "a number"
    for i, entry in enumerate(value):
        if isinstance(entry, list):
            raise ValueError("expected a flat list of numbers")
        if type(entry) not in numbers:
            raise ValueError(f"value {i} is {_said(entry)}, not {what}")
    try:
        return _flat(np.array(value, dtype=dtype))
    except OverflowError:
        limits = np.iinfo(np.int64)
        i, entry = next((i, e) for i, e in enumerate(value) if e is not None and not limits.min <= e <= limits.max)
        raise ValueError(f"value {i}, {_said(entry)}, is too large") from None


def _said(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 24 else f"{text[:20]}..."


def _flat(column: Column) -> Column:
    if column.ndim != 1:
        raise ValueError("expected a flat list of numbers")
    return column


def _unpack(beside: Path) -> dict[str, Column]:
    try:
        with np.load(io.BytesIO(files.read_bytes(beside)), allow_pickle=False) as archive:
            return dict(archive)
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"not a NumPy archive ({error})", source=str(beside)) from None


def _decode(data: bytes, kind: Any, source: str, hook: Callable[[Any, Any], Column]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=hook)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$")
        place = where.rstrip("`").lstrip(".")
        raise InputError(reason[:1].lower() + reason[1:], source=source, place=place) from None
    except msgspec.DecodeError as error:
        raise InputError(f"not valid JSON ({error})", source=source) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not valid UTF-8 text (byte {error.start})", source=source) from None
