"""From JSON text to the structs of the schema, every failure told with file and place."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from emulator.errors import InputError
from emulator.trace.schema import SCHEMA, BlockUse, Group, Index, Mesh, Meta, Op, RanksByAxis, Trace

T = TypeVar("T")

# Only an item with this text can be a block use; that it is one is told by its own keys (an axis may be named "block").
_BLOCK_KEY = re.compile(rb'(?<!\\)"block"\s*:')


class WireProgram(msgspec.Struct, forbid_unknown_fields=True):
    """A program whose ops are still text."""

    ops: list[msgspec.Raw]


class WireTrace(msgspec.Struct, forbid_unknown_fields=True):
    """The document, programs still text."""

    schema: str
    mesh: Mesh
    programs: list[WireProgram]
    ranks: list[tuple[Index, Index]] | RanksByAxis
    meta: Meta = msgspec.field(default_factory=Meta)
    groups: dict[str, Group] = {}
    blocks: dict[str, list[Op]] = {}
    exec: dict[str, Any] | None = None


class _Header(msgspec.Struct):
    schema: str = ""


class _ItemKeys(msgspec.Struct):
    block: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (_Header, _ItemKeys, WireTrace, BlockUse, Op, dict[str, msgspec.Raw])
}


def as_trace(wire: WireTrace) -> Trace:
    """The document without its programs."""
    return Trace(
        mesh=wire.mesh, programs=[], ranks=wire.ranks, meta=wire.meta, groups=wire.groups, blocks=wire.blocks,
        exec=wire.exec,
    )  # fmt: skip


def check_header(data: bytes, source: str) -> None:
    """Refuse what is no trace, or a trace of another version, before the rest is looked at."""
    if not data.strip():
        raise InputError("the file is empty", source=source)
    if not data.lstrip().startswith(b"{"):
        raise InputError("not a trace: the file does not hold a JSON object", source=source)
    check_schema(decode(data, _Header, source, "").schema, source)


def check_schema(schema: str, source: str) -> None:
    """Refuse a document of another kind or version; ``schema`` is what it says it is ("": nothing)."""
    if not schema:
        raise InputError(
            f'no "schema" key: not an {SCHEMA} file',
            source=source,
            remedy="`emu record` writes this format (docs/trace.md)",
        )
    if schema != SCHEMA:
        raise InputError(f"schema is {schema!r}, this version reads {SCHEMA!r}", source=source, place="schema")


def decode_item(text: bytes, source: str, place: str) -> Op | BlockUse:
    """One item of a program: an op or a block use."""
    if _BLOCK_KEY.search(text) and decode(text, _ItemKeys, source, place).block is not msgspec.UNSET:
        return decode(text, BlockUse, source, place)
    return decode(text, Op, source, place)


def decode(data: bytes, kind: type[T], source: str, place: str) -> T:
    """Decode and validate; InputError names ``source``, the place (below ``place``) and the reason."""
    try:
        result: T = _DECODERS[kind].decode(data)
        return result
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$")
        where = where.rstrip("`").lstrip(".")
        separator = "." if place and where and not where.startswith("[") else ""
        raise InputError(reason[:1].lower() + reason[1:], source=source, place=place + separator + where) from None
    except msgspec.DecodeError as error:
        raise InputError(f"not valid JSON ({_json_reason(data, error)})", source=source, place=place) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not valid UTF-8 text (byte {error.start})", source=source, place=place) from None
    except RecursionError:
        raise InputError("lists nested too deep", source=source, place=place) from None


def _json_reason(data: bytes, error: msgspec.DecodeError) -> str:
    """Line and column are kinder than a byte offset; only the slow standard parser knows them."""
    try:
        json.loads(data)
    except json.JSONDecodeError as slow:
        return f"line {slow.lineno} column {slow.colno}: {slow.msg}"
    except (UnicodeDecodeError, RecursionError, ValueError):
        pass
    return str(error)
