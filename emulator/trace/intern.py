"""Equal ops become one object and equal programs one program, while a trace is read.

A capture of many ranks is one program per rank. Most are equal; measured ones are equal but for the seconds in them.
Those become one program too, whose seconds are tables by rank, so that all that comes after works on one program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator.trace.decode import decode_item
from emulator.trace.mesh import program_of_rank
from emulator.trace.schema import MAX_RANKS, BlockUse, Op, PerRank, Program, RanksByAxis, Trace

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]

# The fields in which captures of like ranks differ, as their keys stand in compact JSON (inside a string the quotes
# would be escaped). A number that is not found this way only keeps programs apart.
_SECONDS = (("host_seconds", b'"host_seconds":'), ("duration", b'"duration":'))
_NUMBER = re.compile(rb"\s*(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?\s*")
_MAX_KNOWN = 400_000  # texts remembered: a bound on memory where nothing is equal


@dataclass(frozen=True)
class _Item:
    """An op or block use; ``fields`` are those whose numbers are kept apart (their values here are the first seen)."""

    item: Op | BlockUse
    fields: tuple[str, ...]


class Interner:
    """Takes the programs of a file one by one, as texts of their items."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._known: dict[bytes, int] = {}
        self._items: list[_Item] = []
        self._shapes: dict[bytes, int] = {}  # programs without their seconds
        self._codes: list[Codes] = []
        self._distinct: dict[tuple[int, bytes], int] = {}
        self._programs: list[tuple[int, Floats]] = []  # shape and seconds of each distinct program
        self._of_file: list[int] = []  # the distinct program of each program of the file
        self._reading: tuple[list[int], list[float]] = ([], [])

    def extend(self, texts: Sequence[bytes]) -> None:
        """More items of the program that is being read."""
        codes, seconds = self._reading
        known = self._known
        for text in texts:
            code = known.get(text)
            codes.append(self._new(text, len(codes), seconds) if code is None else code)

    def close(self) -> None:
        """The program that is being read is complete."""
        codes, seconds = self._reading
        self._reading = ([], [])
        array, numbers = np.array(codes, dtype=np.int32), np.array(seconds, dtype=np.float64)
        shape = self._shapes.setdefault(array.tobytes(), len(self._shapes))
        if shape == len(self._codes):
            self._codes.append(array)
        key = (shape, numbers.tobytes())
        if key not in self._distinct:
            self._distinct[key] = len(self._programs)
            self._programs.append((shape, numbers))
        self._of_file.append(self._distinct[key])

    def _new(self, text: bytes, index: int, seconds: list[float]) -> int:
        """Code of an item whose text is not known as it stands; its seconds, if it has any, go to ``seconds``."""
        skeleton, names, numbers = _without_seconds(text)
        code = self._known.get(skeleton) if names else None
        if code is not None:
            seconds += numbers
            return code
        item = decode_item(text, self.source, f"programs[{len(self._of_file)}].ops[{index}]")
        if [getattr(item, name, None) for name in names] == numbers:
            seconds += numbers
        else:  # the keys stood elsewhere in the item
            names, skeleton = (), text
        if len(self._known) < _MAX_KNOWN:
            self._known[skeleton] = len(self._items)
        self._items.append(_Item(item, names))
        return len(self._items) - 1

    def finish(self, trace: Trace) -> Trace:
        """``trace`` (all but its programs) with the programs, equal ones kept once."""
        if trace.exec is not None or not self._fits(trace):  # `exec` calls programs by their number in the file
            built: dict[int, Program] = {}
            for number in self._of_file:
                if number not in built:
                    built[number] = self._program(*self._programs[number])
            programs = [built[number] for number in self._of_file]
            return msgspec.structs.replace(trace, programs=programs)
        return self._merged(trace)

    def _fits(self, trace: Trace) -> bool:
        """Does every rank have a program? (Else the checks will say so; here nothing can be merged.)"""
        if not all(size > 0 for size in trace.mesh.shape) or trace.world_size > MAX_RANKS:
            return False
        if isinstance(trace.ranks, RanksByAxis):
            extent = dict(zip(trace.mesh.axes, trace.mesh.shape, strict=False))
            used, fits = trace.ranks.programs, extent.get(trace.ranks.axis) == len(trace.ranks.programs)
        else:
            used = [program for _, program in trace.ranks]
            fits = all(count > 0 for count, _ in trace.ranks)
            fits = fits and sum(count for count, _ in trace.ranks) == trace.world_size
        return fits and all(0 <= program < len(self._of_file) for program in used)

    def _merged(self, trace: Trace) -> Trace:
        of_file = np.array(self._of_file, dtype=np.int64)
        shapes = np.array([shape for shape, _ in self._programs], dtype=np.int64)
        distinct = of_file[program_of_rank(trace)] if len(shapes) > 1 else np.empty(0, np.int64)
        used = np.unique(distinct)
        programs: list[Program] = []
        file_programs: list[int] = []
        new = np.full(len(self._programs), -1, dtype=np.int64)
        first = {number: at for at, number in reversed(list(enumerate(self._of_file)))}
        for number, (shape, seconds) in enumerate(self._programs):
            if new[number] >= 0:
                continue
            alike = used[shapes[used] == shape]
            table = _by_rank(trace, distinct, alike) if len(alike) > 1 and len(seconds) else None
            file_programs.append(first[number])
            new[number] = len(programs)
            if table is None:
                programs.append(self._program(shape, seconds))
            else:
                new[shapes == shape] = len(programs)
                programs.append(self._tabulated(shape, alike, *table))
        if len(programs) == len(self._of_file):
            return msgspec.structs.replace(trace, programs=programs)
        ranks = _renumbered(trace, new[of_file])
        return msgspec.structs.replace(trace, programs=programs, ranks=ranks, file_programs=file_programs)

    def _program(self, shape: int, seconds: Floats) -> Program:
        ops: list[Op | BlockUse] = []
        at = 0
        numbers = seconds.tolist()
        for code in self._codes[shape].tolist():
            known = self._items[code]
            item = known.item
            if known.fields:
                changes = dict(zip(known.fields, numbers[at : at + len(known.fields)], strict=True))
                at += len(known.fields)
                if any(getattr(item, name) != value for name, value in changes.items()):
                    item = msgspec.structs.replace(item, **changes)
            ops.append(item)
        return Program(ops=ops)

    def _tabulated(self, shape: int, alike: Ints, axes: list[str], where: Ints) -> Program:
        """One program of several that differ in their seconds: ``where`` has the index in ``alike`` of each rank, by
        its coordinates on ``axes``."""
        ops: list[Op | BlockUse] = []
        table = np.stack([self._programs[number][1] for number in alike.tolist()])
        at = 0
        for code in self._codes[shape].tolist():
            known = self._items[code]
            changes: dict[str, float | PerRank] = {}
            for name in known.fields:
                column = table[:, at]
                equal = bool((column == column[0]).all())
                changes[name] = float(column[0]) if equal else PerRank(axes=axes, values=column[where].tolist())
                at += 1
            ops.append(msgspec.structs.replace(known.item, **changes) if changes else known.item)
        return Program(ops=ops)


def _without_seconds(text: bytes) -> tuple[bytes, tuple[str, ...], list[float]]:
    """A text with its seconds taken out, the fields they belong to, and the seconds."""
    names: tuple[str, ...] = ()
    numbers: list[float] = []
    for name, key in _SECONDS:
        at = text.find(key)
        if at < 0:
            continue
        begin = at + len(key)
        end = text.find(b",", begin)
        if end < 0:
            end = text.find(b"}", begin)
        if _NUMBER.fullmatch(text, begin, end):
            numbers.append(float(text[begin:end]))
            names += (name,)
            text = b"%b\0%b" % (text[:begin], text[end:])
    return text, names, numbers


def _by_rank(trace: Trace, distinct: Ints, alike: Ints) -> tuple[list[str], Ints] | None:
    """Axes on which the ranks with programs ``alike`` tell them apart, and the index in ``alike`` by coordinates there.

    None if a table would be much larger than the number of those ranks.
    """
    place = np.searchsorted(alike, distinct)
    place[place == len(alike)] = 0
    grid = np.where(alike[place] == distinct, place, -1).reshape(trace.mesh.shape)
    ranks = int((grid >= 0).sum())
    axes: list[str] = []
    for i, axis in reversed(list(enumerate(trace.mesh.axes))):
        highest = grid.max(axis=i)
        lowest = np.where(grid < 0, len(alike), grid).min(axis=i)
        if bool(((highest < 0) | (highest == lowest)).all()):
            grid = highest
        else:
            axes.insert(0, axis)
    if grid.size > 4 * ranks:
        return None
    return axes, np.where(grid < 0, 0, grid)


def _renumbered(trace: Trace, new: Ints) -> list[tuple[int, int]] | RanksByAxis:
    if isinstance(trace.ranks, RanksByAxis):
        return RanksByAxis(axis=trace.ranks.axis, programs=new[trace.ranks.programs].tolist())
    ranks: list[tuple[int, int]] = []
    for count, program in trace.ranks:
        number = int(new[program])
        if ranks and ranks[-1][1] == number:
            ranks[-1] = (ranks[-1][0] + count, number)
        else:
            ranks.append((count, number))
    return ranks
