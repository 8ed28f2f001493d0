"""Do the members of a group agree? Each issues the same collectives in the same order, and the sizes fit.

The check works on programs and arrays: ranks that nothing tells apart are looked at once, so a million ranks with one
program cost what one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.trace.expand import Rows, used
from emulator.trace.fault import Fault
from emulator.trace.mesh import communicators, coordinate, every_rank, per_rank, program_of_rank, sample
from emulator.trace.messages import Slot, message_bytes, message_sizes, slots_of_rows, split_bytes
from emulator.trace.schema import Op, PerRank, RankNumber, RanksByAxis, Trace

Ints = NDArray[np.int64]


class Sequences:
    """What every program says on every slot: templates of its messages in issue order."""

    def __init__(self, trace: Trace, unrolled: list[Rows], ops: list[Op]) -> None:
        self.trace = trace
        self.ops = ops
        self.slots = [
            {slot: program.template[rows] for slot, rows in slots_of_rows(program, ops).items()} for program in unrolled
        ]
        self._codes: dict[tuple[object, ...], int] = {}

    def together(self, a: Ints, b: Ints) -> list[tuple[int, int]]:
        """The distinct pairs of templates that two sequences have at the same place, in order of appearance."""
        _, first = np.unique(a * len(self.ops) + b, return_index=True)
        first.sort()
        return list(zip(a[first].tolist(), b[first].tolist(), strict=True))

    def first_difference(self, mine: Ints, theirs: Ints, members: int) -> int:
        """First message that differs (the shorter length if only that does, -1 if nothing does); per-rank sizes are
        left open."""
        shared = min(len(mine), len(theirs))
        a, b = mine[:shared], theirs[:shared]
        differ = np.flatnonzero(a != b)
        if len(differ):
            codes = {t: self._code(t, members) for t in np.unique(np.concatenate([a[differ], b[differ]])).tolist()}
            for k in differ.tolist():
                if codes[int(a[k])] != codes[int(b[k])]:
                    return int(k)
        return -1 if len(mine) == len(theirs) else shared

    def _code(self, template: int, members: int) -> int:
        op = self.ops[template]
        splits = op.splits_in is not None or op.splits_out is not None
        size = message_bytes(op, members)
        words = (op.collective, op.dtype, op.root, op.reduce_op, splits, None if splits or is_open(size) else size)
        return self._codes.setdefault(words, len(self._codes))


def is_open(value: object) -> bool:
    """Does a number differ between ranks?"""
    return isinstance(value, PerRank)


def axes_that_matter(trace: Trace, ops: list[Op], axes: list[str]) -> set[str]:
    """Mesh axes on which messages can differ: ``axes``, those of per-rank sizes, and those that choose the program."""
    found = set(axes)
    for op in ops:
        values: list[RankNumber] = [op.bytes_in, op.bytes_out, op.bytes]
        for splits in (op.splits_in, op.splits_out):
            values += [splits] if isinstance(splits, PerRank) else splits or []
        for value in values:
            if isinstance(value, PerRank):
                found.update(value.axes)
    if isinstance(trace.ranks, RanksByAxis):
        found.add(trace.ranks.axis)
    elif len({program for _, program in trace.ranks}) > 1:
        found.update(trace.mesh.axes)
    return found


@dataclass(frozen=True)
class _Members:
    """Some ranks of a group that stand for all: their programs, the first rank of their communicator (with its
    program) and its size."""

    ranks: Ints
    program: Ints
    leader: Ints
    leader_program: Ints
    size: Ints


def collective_faults(view: Sequences) -> Iterator[Fault]:
    """Members of a group that do not issue the same collectives."""
    ops = view.ops
    for name in view.trace.groups:
        slot = Slot("collective", name, None, 0)
        lines = [slots[slot] for slots in view.slots if slot in slots]
        if lines:
            mine = [ops[t] for t in used(np.concatenate(lines)).tolist()]
            yield from _group_faults(view, slot, mine)


def _group_faults(view: Sequences, slot: Slot, ops: list[Op]) -> Iterator[Fault]:
    who = _members(view, slot, ops)
    if isinstance(who, Fault):
        yield who
        return
    pairs = np.stack([who.leader_program, who.program, who.size], axis=1)
    distinct, first, which = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    which = which.ravel()
    any_open = any(is_open(size) for op in ops for size in (op.bytes_in, op.bytes_out))
    found = False
    for pair, ((lead_program, program, size), at) in enumerate(zip(distinct.tolist(), first.tolist(), strict=True)):
        lead, rank = int(who.leader[at]), int(who.ranks[at])
        fault = _difference(view, slot, (lead, lead_program), (rank, program), size)
        if fault is None and any_open:
            here = np.flatnonzero(which == pair)
            fault = _open_difference(view, slot, (lead_program, program), who.leader[here], who.ranks[here], size)
        if fault is not None:
            found = True
            yield fault
    if found:
        return
    for program in np.unique(who.program).tolist():
        mine = np.flatnonzero(who.program == program)
        for template in used(view.slots[program].get(slot, np.empty(0, np.int64))).tolist():
            reason = _side_reason(view.trace, view.ops[template], who.ranks[mine], who.size[mine])
            if reason:
                yield Fault(place(view, program, int(who.ranks[mine[0]]), template), reason)
                found = True
    if not found and any(op.splits_in is not None or op.splits_out is not None for op in ops):
        yield from _split_faults(view, slot)


def _members(view: Sequences, slot: Slot, ops: list[Op]) -> _Members | Fault:
    trace, group = view.trace, view.trace.groups[slot.group]
    if group.axes is not None:
        ranks = sample(trace, axes_that_matter(trace, ops, group.axes))
        leader, size = ranks.copy(), 1
        for axis in group.axes:
            i = trace.mesh.axes.index(axis)
            leader -= coordinate(trace, axis, ranks) * int(np.prod(trace.mesh.shape[i + 1 :], dtype=np.int64))
            size *= trace.mesh.shape[i]
        sizes = np.full(len(ranks), size)
    else:
        who = communicators(trace, slot.group)
        program = program_of_rank(trace)
        uses = np.array([slot in slots for slots in view.slots])
        outside = np.flatnonzero((who.of_rank < 0) & uses[program])
        if len(outside):
            rank = int(outside[0])
            template = int(view.slots[program[rank]][slot][0])
            kind = view.ops[template].collective
            reason = f"rank {rank} calls {kind} on group {slot.group!r} but is not in it"
            return Fault(place(view, int(program[rank]), rank, template), reason)
        ranks = who.ranks
        leader = who.ranks[who.ptr[:-1]][who.of_rank[ranks]]
        sizes = who.sizes[who.of_rank[ranks]]
    return _Members(ranks, program_of_rank(trace, ranks), leader, program_of_rank(trace, leader), sizes)


def place(view: Sequences, program: int, rank: int, template: int) -> str:
    """Where in the trace an op of a rank stands."""
    return f"{view.trace.program_place(program)} op {view.ops[template].id} (rank {rank})"


def _difference(view: Sequences, slot: Slot, lead: tuple[int, int], member: tuple[int, int], size: int) -> Fault | None:
    """The first message in which two members (rank, program) of a communicator differ."""
    nothing = np.empty(0, np.int64)
    (lead_rank, lead_program), (rank, program) = lead, member
    theirs, mine = (view.slots[p].get(slot, nothing) for p in (lead_program, program))
    k = view.first_difference(mine, theirs, size)
    if k < 0:
        return None
    if k < min(len(mine), len(theirs)):
        a, b = (_say(view.ops[int(sequence[k])], size) for sequence in (theirs, mine))
        return Fault(
            place(view, program, rank, int(mine[k])),
            f"group {slot.group!r}, collective {k}: rank {rank} calls {b}, rank {lead_rank} {a}",
        )
    less, more, long = (rank, lead, theirs) if len(mine) < len(theirs) else (lead_rank, member, mine)
    missing = int(long[k])
    return Fault(
        place(view, more[1], more[0], missing),
        f"group {slot.group!r}: rank {less} issues {k} collectives, rank {more[0]} issues {len(long)};"
        f" rank {less} is missing from {view.ops[missing].collective}",
    )


def _say(op: Op, members: int) -> str:
    size = message_bytes(op, members)
    uneven = op.splits_in is not None or op.splits_out is not None
    amount = "per-rank bytes" if isinstance(size, PerRank) else f"{size:g} bytes"
    return f"{op.collective} of {'uneven parts' if uneven else amount} {op.dtype}"


def _open_difference(
    view: Sequences, slot: Slot, programs: tuple[int, int], leaders: Ints, ranks: Ints, members: int
) -> Fault | None:
    """Sizes that differ between ranks are the same all over each communicator."""
    nothing = np.empty(0, np.int64)
    theirs, mine = (view.slots[p].get(slot, nothing) for p in programs)
    for a, b in view.together(theirs, mine):
        ours, op = view.ops[a], view.ops[b]
        if op.splits_in is not None or op.splits_out is not None:
            continue
        if not is_open(message_bytes(ours, members)) and not is_open(message_bytes(op, members)):
            continue
        lead = message_sizes(view.trace, ours, leaders, members)
        values = message_sizes(view.trace, op, ranks, members)
        if (bad := np.flatnonzero(values != lead)).size:
            at = int(ranks[bad[0]])
            hint = "; uneven parts need splits_in and splits_out" if op.collective == "all_to_all" else ""
            return Fault(
                place(view, programs[1], at, b),
                f"{op.collective}: rank {at} has {values[bad[0]]:g} bytes, its group {lead[bad[0]]:g}{hint}",
            )
    return None


def _side_reason(trace: Trace, op: Op, ranks: Ints, members: Ints) -> str:
    """Both sides of one op fit each other."""
    if op.root is not None and not 0 <= op.root < members.min():
        return f"root {op.root} is not an index in a group of {members.min()}"
    for splits, total, name in ((op.splits_in, op.bytes_in, "in"), (op.splits_out, op.bytes_out, "out")):
        if splits is not None and (is_open(total) or total):
            parts = split_bytes(trace, op, name == "in", ranks)
            assert parts is not None
            if reason := _unequal(ranks, parts.sum(axis=1), per_rank(trace, total, ranks)):
                return f"splits_{name} do not add up to bytes_{name}: {reason}"
    if op.splits_in is not None or op.splits_out is not None:
        return ""
    into, out = op.bytes_in, op.bytes_out
    if not (is_open(into) or into) or not (is_open(out) or out):
        return ""
    if not is_open(into) and not is_open(out):  # equal on all ranks: one of each group size will do
        members, first = np.unique(members, return_index=True)
        ranks = ranks[first]
    taken, given = per_rank(trace, into, ranks), per_rank(trace, out, ranks)
    whole, part = {"all_gather": (given, taken), "reduce_scatter": (taken, given)}.get(
        op.collective or "", (None, None)
    )
    if whole is not None and part is not None:
        if (bad := np.flatnonzero(whole != part * members)).size:
            at = bad[0]
            return f"{op.collective}: {whole[at]:g} bytes is not {members[at]} (group size) x {part[at]:g}"
    elif op.collective in ("all_reduce", "all_to_all", "broadcast") and (bad := np.flatnonzero(taken != given)).size:
        return f"{op.collective}: bytes_in {taken[bad[0]]:g} and bytes_out {given[bad[0]]:g} differ"
    return ""


def _unequal(ranks: Ints, a: NDArray[np.float64], b: NDArray[np.float64]) -> str:
    bad = np.flatnonzero(a != b)
    return f"rank {ranks[bad[0]]} has {a[bad[0]]:g} and {b[bad[0]]:g}" if len(bad) else ""


def _split_faults(view: Sequences, slot: Slot) -> Iterator[Fault]:
    """In an all-to-all with uneven parts what i sends to j is what j expects from i."""
    trace = view.trace
    who = communicators(trace, slot.group)
    members = who.ranks.reshape(len(who.sizes), -1)  # splits need communicators of one size
    program = program_of_rank(trace, every_rank(trace))[members]
    patterns, which = np.unique(program, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns.tolist()):
        together = members[which.ravel() == number]
        lines = [view.slots[p].get(slot, np.empty(0, np.int64)) for p in pattern]
        for templates in dict.fromkeys(zip(*(line.tolist() for line in lines), strict=True)):
            fault = _parts_fault(view, together, pattern, templates)
            if fault is not None:
                yield fault
                return


def _parts_fault(view: Sequences, members: Ints, programs: list[int], templates: tuple[int, ...]) -> Fault | None:
    """The first pair that disagrees; ``members``: shape (communicators, size), ``templates``: the op of each member."""
    trace, size = view.trace, members.shape[1]
    if view.ops[templates[0]].splits_in is None and view.ops[templates[0]].splits_out is None:
        return None
    unknown = np.full((len(members), size), np.nan)
    parts: list[list[NDArray[np.float64]]] = [[], []]
    for i, template in enumerate(templates):
        for side, outgoing in zip(parts, (True, False), strict=True):
            found = split_bytes(trace, view.ops[template], outgoing, members[:, i])
            side.append(unknown if found is None else found)
    sent, received = np.stack(parts[0], axis=1), np.stack(parts[1], axis=1).transpose(0, 2, 1)
    bad = np.argwhere((sent != received) & ~np.isnan(sent) & ~np.isnan(received))
    if not len(bad):
        return None
    c, i, j = bad[0].tolist()
    return Fault(
        place(view, programs[i], int(members[c, i]), templates[i]),
        f"all_to_all: rank {members[c, i]} sends {sent[c, i, j]:g} bytes to rank {members[c, j]},"
        f" which expects {received[c, i, j]:g}",
    )
