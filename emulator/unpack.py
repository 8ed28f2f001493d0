"""JSON text as people and tools leave it: plain, gzip or zstd (told by content), with a byte-order mark or not.

What comes out is UTF-8 without the mark; a cut or damaged file is told as one, and UTF-16 is refused by name.
"""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

import zstandard

from emulator.errors import InputError
from emulator.files import read_bytes

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how compressed files begin
_BEGINNINGS = b"{[< \t\r\n"
_PIECE = 2**22  # bytes of text at a time
_FRAME_PART = 2**14  # compressed bytes at a time: zstd can make thirty thousand of one
Progress = Callable[[int, int], None]


def read_text_bytes(path: Path | str) -> bytes:
    """The whole text of a file. Raises InputError if it cannot be read, is cut, damaged or UTF-16."""
    return b"".join(text_pieces(path))


def text_pieces(path: Path | str, progress: Progress | None = None) -> Generator[bytes, None, None]:
    """The text of a file, a few megabytes at a time; ``progress`` is told how many of its bytes have been read, of
    how many. Raises InputError as :func:`read_text_bytes` does."""
    source = str(path)
    with closing(_open(path)) as file:
        total = os.fstat(file.fileno()).st_size  # 0 for a pipe
        first = True
        for piece in _unpacked(file, source):
            yield without_mark(piece, source) if first else piece
            first = False
            if progress is not None and total:
                progress(file.tell(), total)


def without_mark(text: bytes, source: str) -> bytes:
    """The beginning of a text without its byte-order mark. Raises InputError if it is UTF-16."""
    if is_utf16(text):
        raise InputError("is UTF-16", source=source, remedy="save it as UTF-8")
    return text.removeprefix(codecs.BOM_UTF8)


def is_utf16(text: bytes) -> bool:
    """Is a text UTF-16, by its mark, or by how it begins: a zero beside what JSON and XML begin with?"""
    return text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or (
        text[:2].count(0) == 1 and text[:2].strip(b"\0") in _BEGINNINGS
    )


def _open(path: Path | str) -> BufferedReader:
    try:
        return Path(path).open("rb")
    except (OSError, ValueError):
        read_bytes(path)  # says in one line what is wrong
        raise


def _unpacked(file: BufferedReader, source: str) -> Iterator[bytes]:
    compressed = False
    try:
        magic = file.peek(4)[:4]
        compressed = bool(magic) and (magic.startswith(_GZIP) or _ZSTD.startswith(magic) or magic == _GZIP[:1])
        if magic.startswith(_ZSTD[:1]) and compressed:
            yield from _gathered(_frames(file))
        else:
            text = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if compressed else file
            while piece := text.read(_PIECE):
                yield piece
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        what = "damaged or cut compressed file" if compressed else "cannot read"
        raise InputError(f"{what} ({error})", source=source) from None


def _frames(file: BufferedReader) -> Iterator[bytes]:
    """What the frames of a zstd file hold. Raises EOFError if the last one is cut (the library's reader would not)."""
    decompressor = zstandard.ZstdDecompressor()
    frame, rest = decompressor.decompressobj(), b""
    while part := rest or file.read(_FRAME_PART):
        if frame.eof:
            frame = decompressor.decompressobj()
        yield frame.decompress(part)
        rest = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it ends inside a frame")


def _gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Small parts as pieces of some megabytes."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)
