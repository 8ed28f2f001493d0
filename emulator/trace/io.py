"""Reading and writing trace files: plain JSON, ``.gz`` and ``.zst``.

Reading only decodes and validates shapes and types; whether the ranks fit together is the business of
:mod:`emulator.trace.check`.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zstandard

from emulator.errors import InputError
from emulator.files import read_bytes, write_bytes
from emulator.trace.schema import SCHEMA, BlockUse, Group, Mesh, Meta, Op, Program, RanksByAxis, Trace

T = TypeVar("T")

SUFFIXES = (".json", ".json.gz", ".json.zst")
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# An item of a program is a block use if it has a "block" key; inside a JSON string the quotes would be escaped.
_BLOCK_KEY = re.compile(rb'(?<!\\)"block"\s*:')


class _WireProgram(msgspec.Struct, forbid_unknown_fields=True):
    ops: list[msgspec.Raw]


class _WireTrace(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    mesh: Mesh
    programs: list[_WireProgram]
    ranks: list[tuple[int, int]] | RanksByAxis
    meta: Meta = msgspec.field(default_factory=Meta)
    groups: dict[str, Group] = {}
    blocks: dict[str, list[Op]] = {}
    exec: dict[str, Any] | None = None


class _Header(msgspec.Struct):
    schema: str = ""


def read(path: Path | str) -> Trace:
    """Decode a trace file. Raises InputError (file, place, reason) on anything that is not a well-formed trace."""
    source = str(path)
    data = _decompress(read_bytes(path), source)
    if not data.strip():
        raise InputError("the file is empty", source=source)
    if not data.lstrip().startswith(b"{"):
        raise InputError("not a trace: the file does not hold a JSON object", source=source)
    header = _decode(data, _Header, source, "")
    if not header.schema:
        raise InputError(
            f'no "schema" key: not an {SCHEMA} file',
            source=source,
            remedy="`emu trace convert` will read other formats; `emu record` writes this one",
        )
    if header.schema != SCHEMA:
        raise InputError(f"schema is {header.schema!r}, this version reads {SCHEMA!r}", source=source, place="schema")
    wire = _decode(data, _WireTrace, source, "")
    programs = [
        Program(ops=[_item(raw, source, f"programs[{p}].ops[{i}]") for i, raw in enumerate(program.ops)])
        for p, program in enumerate(wire.programs)
    ]
    return Trace(
        mesh=wire.mesh, programs=programs, ranks=wire.ranks, meta=wire.meta, groups=wire.groups, blocks=wire.blocks,
        exec=wire.exec,
    )  # fmt: skip


def write(trace: Trace, path: Path | str) -> None:
    """Write a trace, compressed as the suffix says; the file appears whole or not at all."""
    data = b"".join(encode(trace))
    name = str(path)
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    elif name.endswith(".zst"):
        data = zstandard.ZstdCompressor(level=10).compress(data)
    write_bytes(path, data)


def encode(trace: Trace) -> Iterator[bytes]:
    """The JSON text of a trace in pieces, one op a line so that two traces can be compared line by line."""
    encoder = msgspec.json.Encoder()
    yield b'{"schema":' + encoder.encode(SCHEMA)
    yield b',\n"meta":' + encoder.encode(trace.meta)
    yield b',\n"mesh":' + encoder.encode(trace.mesh)
    yield b',\n"groups":' + encoder.encode(trace.groups)
    yield b',\n"ranks":' + encoder.encode(trace.ranks)
    yield b',\n"blocks":{'
    for i, (name, ops) in enumerate(trace.blocks.items()):
        yield (b",\n" if i else b"\n") + encoder.encode(name) + b":[\n"
        yield b",\n".join(map(encoder.encode, ops)) + b"]"
    yield b'},\n"programs":['
    for i, program in enumerate(trace.programs):
        yield (b",\n" if i else b"\n") + b'{"ops":[\n' + b",\n".join(map(encoder.encode, program.ops)) + b"]}"
    yield b"]"
    if trace.exec is not None:
        yield b',\n"exec":' + encoder.encode(trace.exec)
    yield b"}\n"


def _decompress(data: bytes, source: str) -> bytes:
    try:
        if data.startswith(_GZIP_MAGIC):
            return gzip.decompress(data)
        if data.startswith(_ZSTD_MAGIC):
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"damaged or cut compressed file ({error})", source=source) from None
    return data


def _item(raw: msgspec.Raw, source: str, place: str) -> Op | BlockUse:
    data = bytes(raw)
    return _decode(data, BlockUse, source, place) if _BLOCK_KEY.search(data) else _decode(data, Op, source, place)


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (_Header, _WireTrace, BlockUse, Op)
}


def _decode(data: bytes, kind: type[T], source: str, place: str) -> T:
    try:
        result: T = _DECODERS[kind].decode(data)
        return result
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$")
        where = where.rstrip("`").lstrip(".")
        separator = "." if place and where and not where.startswith("[") else ""
        raise InputError(reason[:1].lower() + reason[1:], source=source, place=place + separator + where) from None
    except msgspec.DecodeError as error:
        raise InputError(f"not valid JSON ({_json_reason(data, error)})", source=source) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not valid UTF-8 text (byte {error.start})", source=source) from None


def _json_reason(data: bytes, error: msgspec.DecodeError) -> str:
    """Line and column are kinder than a byte offset; only the slow standard parser knows them."""
    try:
        json.loads(data)
    except json.JSONDecodeError as slow:
        return f"line {slow.lineno} column {slow.colno}: {slow.msg}"
    except (UnicodeDecodeError, RecursionError):
        pass
    return str(error)
