"""Long repeats: a step with 32,768 microbatches is a beginning, the same thing many times, and an end.

``shorten`` takes instances out of the long block uses of all programs alike. What is left is a legal trace of the same
shape: whoever sent one message less now also receives one less.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from emulator.trace.expand import instance_value
from emulator.trace.schema import BlockUse, Op, Program, Trace


@dataclass(frozen=True)
class Site:
    """One long block use of one program: rows ``first_row + i * rows + j`` for instance i of ``kept`` and op j.

    ``steps`` is how much each tag grows from instance to instance.
    """

    first_row: int
    rows: int
    kept: int
    steps: dict[str, int]


@dataclass(frozen=True)
class Cut:
    """One stretch that was taken out of all programs: ``count`` instances, and where it was in each program."""

    count: int
    sites: list[Site]


def shorten(trace: Trace, keep: int, span: int = 1) -> tuple[Trace, list[Cut]]:
    """The trace with about ``keep`` instances left in its long repeats, and what was cut (nothing: the trace itself).

    A repeat is long if it has more than 2 x ``keep`` + ``span`` instances of a block that is not empty. Programs have
    to agree in how many long repeats they have; the k-th of each is cut by the same number, a multiple of ``span``.
    """
    long = [
        [
            i
            for i, item in enumerate(program.ops)
            if isinstance(item, BlockUse) and trace.blocks[item.block] and item.repeat > 2 * keep + span
        ]
        for program in trace.programs
    ]
    if len({len(places) for places in long}) != 1 or not long[0]:
        return trace, []
    counts = []
    for k in range(len(long[0])):
        repeats = [_use(program, places[k]).repeat for program, places in zip(trace.programs, long, strict=True)]
        count = min(repeats) - keep
        counts.append(count - count % span)
    programs = []
    sites: list[list[Site]] = [[] for _ in counts]
    for program, places in zip(trace.programs, long, strict=True):
        items: list[Op | BlockUse] = list(program.ops)
        for place, count in zip(places, counts, strict=True):
            use = _use(program, place)
            items[place] = BlockUse(use.block, use.repeat - count, use.set)
        row = 0
        for i, item in enumerate(items):
            body = len(trace.blocks[item.block]) if isinstance(item, BlockUse) else 1
            repeat = item.repeat if isinstance(item, BlockUse) else 1
            if i in places:
                assert isinstance(item, BlockUse)
                steps = {tag: instance_value(value)[1] for tag, value in item.set.items()}
                sites[places.index(i)].append(Site(row, body, repeat, steps))
            row += body * repeat
        programs.append(Program(items))
    cuts = [Cut(count, found) for count, found in zip(counts, sites, strict=True)]
    return msgspec.structs.replace(trace, programs=programs), cuts


def _use(program: Program, place: int) -> BlockUse:
    item = program.ops[place]
    assert isinstance(item, BlockUse)
    return item
