"""Reading and writing trace files: plain JSON, ``.gz`` and ``.zst``.

Reading only decodes and validates shapes and types; whether the ranks fit together is the business of
:mod:`emulator.trace.check`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import msgspec
import zstandard

from emulator.files import write_bytes
from emulator.trace.decode import WireTrace, as_trace, check_header, decode
from emulator.trace.intern import Interner
from emulator.trace.schema import SCHEMA, Trace
from emulator.trace.stream import read_stream
from emulator.unpack import text_pieces

SUFFIXES = (".json", ".json.gz", ".json.zst")
_WHOLE = 2**25  # bytes of text up to which a file is decoded in one go, which is faster


def read(path: Path | str, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Decode a trace file; equal programs are kept once. Raises InputError (file, place, reason) on anything that is
    not a well-formed trace.

    Files of more than some 30 MB of text are read in pieces; ``progress`` is then told how many bytes of the file
    have been read, of how many.
    """
    source = str(path)
    with closing(text_pieces(path, progress)) as pieces:
        head: list[bytes] = []
        while sum(map(len, head)) < _WHOLE:
            piece = next(pieces, None)
            if piece is None:
                return _read_whole(b"".join(head), source)
            head.append(piece)
        return read_stream(chain(head, pieces), source)


def _read_whole(data: bytes, source: str) -> Trace:
    check_header(data, source)
    wire = decode(data, WireTrace, source, "")
    interner = Interner(source)
    for program in wire.programs:
        interner.extend([bytes(item) for item in program.ops])
        interner.close()
    return interner.finish(as_trace(wire))


def write(trace: Trace, path: Path | str) -> None:
    """Write a trace, compressed as the suffix says; the file appears whole or not at all."""
    data = b"".join(encode(trace))
    name = str(path).lower()
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
