"""Reading a trace of any size in bounded memory: programs are cut into items while the text comes in.

The text is scanned in numpy, a few megabytes at a time, for the brackets and commas of the outer four levels of JSON;
what lies between two commas of an "ops" list is one item, which goes to the interner as it stands. All other parts of
the document are small and are kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.trace.decode import WireTrace, as_trace, check_header, check_schema, decode
from emulator.trace.intern import Interner
from emulator.trace.schema import Trace

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPEN, _CLOSE = b"{[", b"}]"
_SPACE = b" \t\r\n"
_WANTED = bytes(char in b'"{}[],' for char in range(256))  # for bytes.translate, the fastest table there is
_STEP = np.zeros(256, dtype=np.int8)  # what a character does to the depth
_STEP[list(_OPEN)], _STEP[list(_CLOSE)] = 1, -1
_ITEMS = 4  # depth inside of {"programs": [{"ops": [


def read_stream(chunks: Iterable[bytes], source: str) -> Trace:
    """Decode a trace that comes in pieces. Raises InputError as reading it whole would."""
    reader = _Reader(source)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()


class _Scanner:
    """Finds brackets and commas outside of strings; keeps track of depth and strings between pieces."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self.escape = False  # the last piece ended with a backslash that escapes the next character

    def marks(self, text: bytes) -> tuple[Ints, Bytes, Ints]:
        """Positions, characters and depths of all brackets and commas down to the items.

        The depth of a bracket is that outside of it, the depth of a comma that of its list.
        """
        piece = np.frombuffer(text, dtype=np.uint8)
        position = np.flatnonzero(np.frombuffer(text.translate(_WANTED), dtype=np.bool_))
        char = piece[position]
        quote = char == _QUOTE
        escaped = self._escaped(piece)
        if len(escaped):
            quote &= ~np.isin(position, escaped)
        inside = np.logical_xor.accumulate(quote)
        if self.in_string:
            inside = ~inside
        self.in_string = bool(inside[-1]) if len(inside) else self.in_string
        structure = ~inside & (char != _QUOTE)
        position, char = position[structure], char[structure]
        step = _STEP[char]
        after = self.depth + np.cumsum(step, dtype=np.int64)
        self.depth = int(after[-1]) if len(after) else self.depth
        depth = after - (step > 0)
        outer = (depth < _ITEMS) | ((depth == _ITEMS) & (char == _COMMA))
        return position[outer], char[outer], depth[outer]

    def _escaped(self, piece: Bytes) -> Ints:
        """Positions of characters that a backslash takes the meaning of."""
        backslash = np.flatnonzero(piece == _BACKSLASH)
        first = np.zeros(int(self.escape), dtype=np.int64)
        if not len(backslash):
            self.escape = False
            return first
        gap = np.diff(backslash) > 1
        begin, end = backslash[np.r_[True, gap]], backslash[np.r_[gap, True]]
        length = end - begin + 1
        if self.escape and begin[0] == 0:
            length[0] -= 1
            first = first[:0]
        found = np.concatenate([first, end[length % 2 == 1] + 1])
        self.escape = bool(found[-1] == len(piece)) if len(found) else False
        return found


# What may come next outside of a member's value, by state: (character, its depth) -> next state. Between two such
# characters there is only white space, but for the key before the list of a program's ops.
_GRAMMAR: dict[str, dict[tuple[str, int], str]] = {
    "start": {("{", 0): "member"},
    "programs": {("{", 2): "program", ("]", 1): "member end"},
    "program": {("[", 3): "items"},
    "items": {("]", 3): "program end"},
    "program end": {("}", 2): "between programs"},
    "between programs": {(",", 2): "next program", ("]", 1): "member end"},
    "next program": {("{", 2): "program"},
    "member end": {(",", 1): "member", ("}", 0): "end"},
    "end": {},
}


class _Reader:
    """Follows the document: its members, and within "programs" the programs and their items."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.scanner = _Scanner()
        self.interner = Interner(source)
        self.members: dict[str, bytes] = {}
        self.state = "start"
        self.buffer = bytearray()
        self.begin = 0  # where in the buffer the text starts that is not dealt with yet
        self.offset = 0  # of the buffer in the whole text
        self.programs = self.items = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the text."""
        shift = len(self.buffer)
        self.buffer += piece
        position, char, depth = self.scanner.marks(piece)
        position += shift
        between = (char == _COMMA) & (depth == _ITEMS)
        commas = position[between]
        rest = zip(position[~between].tolist(), char[~between].tolist(), depth[~between].tolist(), strict=True)
        done = 0
        for at, symbol, level in rest:
            upto = int(np.searchsorted(commas, at))
            if self.state == "items":
                self._items(commas[done:upto].tolist(), at)
            done = upto
            self._mark(at, chr(symbol), level)
        if self.state == "items":
            self._items(commas[done:].tolist(), None)
        del self.buffer[: self.begin]
        self.offset += self.begin
        self.begin = 0

    def finish(self) -> Trace:
        """The trace, once all of the text has been taken."""
        if self.state == "start" and not self.buffer.strip(_SPACE):
            raise InputError("the file is empty", source=self.source)
        if self.state != "end" or self.buffer.strip(_SPACE):
            self._fail(len(self.buffer), "the text ends early" if self.state != "end" else "more text after the object")
        if "schema" not in self.members:
            check_schema("", self.source)
        wire = decode(b"{" + b",".join(self.members.values()) + b"}", WireTrace, self.source, "")
        return self.interner.finish(as_trace(wire))

    def _items(self, commas: list[int], end: int | None) -> None:
        """Items between commas; the last one stops at ``end``, or is still to come (None)."""
        stops = commas if end is None else [*commas, end]
        if not stops:
            return
        starts = [self.begin, *(stop + 1 for stop in stops[:-1])]
        with memoryview(self.buffer) as view:
            texts = [bytes(view[a:b]).strip() for a, b in zip(starts, stops, strict=True)]
        if end is not None:
            self.begin = end  # the bracket itself is for the grammar
            if not self.items and texts == [b""]:
                return
        else:
            self.begin = stops[-1] + 1
        self.items += len(texts)
        self.interner.extend(texts)

    def _mark(self, at: int, symbol: str, level: int) -> None:
        if self.state == "member":
            if symbol == "," and level == 1:
                self._member(at)
            elif symbol == "}" and level == 0:
                if self.members or self.buffer[self.begin : at].strip(_SPACE):
                    self._member(at)
                self._go("end", at)
            elif symbol in "{[" and level == 1 and self._known_key(at) == "programs" and symbol == "[":
                self.members["programs"] = b'"programs":[]'
                self._go("programs", at)
            return
        follows = _GRAMMAR[self.state].get((symbol, level))
        if follows is None:
            self._fail(at, f"{symbol!r} does not belong here")
        elif self.state == "program":
            if self._key(at) != "ops":
                raise InputError(
                    f"object contains unknown field `{self._key(at)}`",
                    source=self.source,
                    place=f"programs[{self.programs}]",
                )
            self.items = 0
        elif self.buffer[self.begin : at].strip(_SPACE):
            self._fail(self.begin, "text that does not belong here")
        if self.state == "program end":
            self.interner.close()
            self.programs += 1
        self._go(follows, at)

    def _go(self, state: str | None, at: int) -> None:
        assert state is not None
        self.state = state
        self.begin = at + 1

    def _member(self, at: int) -> None:
        """A member of the document is complete: keep its text."""
        text = bytes(self.buffer[self.begin : at]).strip()
        key = next(iter(decode(b"{" + text + b"}", dict[str, msgspec.Raw], self.source, "")), None)
        if key is None:
            self._fail(at, "a member is missing")
        self.members[key] = text
        if key == "schema":
            check_header(b"{" + text + b"}", self.source)
        self.begin = at + 1

    def _key(self, at: int) -> str:
        """The key of the value that begins at ``at``."""
        text = bytes(self.buffer[self.begin : at])
        return next(iter(decode(b"{" + text + b"null}", dict[str, msgspec.Raw], self.source, "")), "")

    def _known_key(self, at: int) -> str:
        """The key of a large member: another kind of file is refused before it fills the memory."""
        key = self._key(at)
        if key not in WireTrace.__struct_fields__:
            if "schema" not in self.members:
                check_schema("", self.source)
            raise InputError(f"object contains unknown field `{key}`", source=self.source)
        if key == "programs" and key in self.members:
            self._fail(at, '"programs" twice')
        return key

    def _fail(self, at: int, reason: str) -> NoReturn:
        raise InputError(f"not valid JSON (byte {self.offset + at:,}: {reason})", source=self.source)
