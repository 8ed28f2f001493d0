"""Do the ranks agree? Every member of a group issues the same sequence, every send has its receive.

The check works on programs and arrays over ranks: a thousand ranks with one program cost what one rank does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from emulator.trace.expand import Rows, templates
from emulator.trace.fault import Fault
from emulator.trace.mesh import Communicators, communicators, peer_of_rank, per_rank, program_of_rank
from emulator.trace.messages import Slot, message_bytes, slots_of_rows, split_bytes
from emulator.trace.schema import Op, PerRank, Trace

Ints = NDArray[np.int64]


class _View:
    """The slots of every program, and what a rank's k-th message on a slot says."""

    def __init__(self, trace: Trace, unrolled: list[Rows]) -> None:
        self.trace = trace
        self.unrolled = unrolled
        self.ops = templates(trace).ops
        self.slots = [slots_of_rows(program, self.ops) for program in unrolled]
        self.program = program_of_rank(trace)

    def sequence(self, program: int, slot: Slot) -> list[Op]:
        """The messages of a program on a slot, in issue order."""
        rows = self.slots[program].get(slot)
        if rows is None:
            return []
        return [self.ops[t] for t in self.unrolled[program].template[rows].tolist()]

    def words(self, op: Op, members: int) -> tuple[object, ...]:
        """What has to be equal on both sides, per-rank numbers left open (they are compared as arrays)."""
        size = message_bytes(op, members)
        open_size = isinstance(size, PerRank) or op.splits_in is not None or op.splits_out is not None
        return (op.collective, op.dtype, None if open_size else size, op.root, op.reduce_op)


def match_faults(trace: Trace, unrolled: list[Rows]) -> Iterator[Fault]:
    """Faults that show only across ranks."""
    view = _View(trace, unrolled)
    for name in trace.groups:
        if any(Slot("collective", name, None, 0) in slots for slots in view.slots):
            yield from _collective_faults(view, name)
    yield from _pair_faults(view)


def _collective_faults(view: _View, name: str) -> Iterator[Fault]:
    slot = Slot("collective", name, None, 0)
    who = communicators(view.trace, name)
    outside = np.flatnonzero(who.of_rank < 0)
    for rank in outside.tolist():
        if slot in view.slots[view.program[rank]]:
            op = view.sequence(int(view.program[rank]), slot)[0]
            yield Fault(_place(view, rank, op), f"rank {rank} calls {op.collective} on group {name!r} but is not in it")
            return
    first = who.ranks[who.ptr[:-1]]
    leader = first[who.of_rank[who.ranks]]
    pairs = (
        {
            (int(a), int(b)): (int(lead), int(rank))
            for lead, rank, a, b in zip(
                leader[::-1], who.ranks[::-1], view.program[leader][::-1], view.program[who.ranks][::-1], strict=True
            )
            if a != b
        }
        if len(view.slots) > 1
        else {}
    )
    found = False
    for (a, b), (lead, rank) in sorted(pairs.items()):
        fault = _difference(view, slot, lead, a, rank, b, who)
        if fault:
            found = True
            yield fault
    if not found:
        for program in range(len(view.slots)):
            yield from _size_faults(view, slot, program, who)


def _place(view: _View, rank: int, op: Op) -> str:
    return f"programs[{view.program[rank]}] op {op.id} (rank {rank})"


def _difference(
    view: _View, slot: Slot, lead: int, lead_program: int, rank: int, program: int, who: Communicators
) -> Fault | None:
    """The first message in which two members of a communicator differ."""
    mine, theirs = view.sequence(program, slot), view.sequence(lead_program, slot)
    size = int(who.sizes[who.of_rank[rank]])
    for k, (a, b) in enumerate(zip(theirs, mine, strict=False)):
        if view.words(a, size) != view.words(b, size):
            return Fault(
                _place(view, rank, b),
                f"group {slot.group!r}, collective {k}: rank {rank} calls {_say(b, size)}, rank {lead} {_say(a, size)}",
            )
    if len(mine) == len(theirs):
        return None
    less, more, short, long = (rank, lead, mine, theirs) if len(mine) < len(theirs) else (lead, rank, theirs, mine)
    missing = long[len(short)]
    return Fault(
        _place(view, more, missing),
        f"group {slot.group!r}: rank {less} issues {len(short)} collectives, rank {more} issues {len(long)};"
        f" rank {less} is missing from {missing.collective}",
    )


def _say(op: Op, members: int) -> str:
    size = message_bytes(op, members)
    amount = "per-rank bytes" if isinstance(size, PerRank) else f"{size:g} bytes"
    return f"{op.collective} of {amount} {op.dtype}"


def _size_faults(view: _View, slot: Slot, program: int, who: Communicators) -> Iterator[Fault]:
    """Both sides of one op fit each other, and numbers that differ between ranks fit across the group."""
    trace = view.trace
    rows = view.slots[program].get(slot)
    if rows is None:
        return
    sizes = np.unique(who.sizes[who.of_rank[np.flatnonzero((view.program == program) & (who.of_rank >= 0))]])
    for template in np.unique(view.unrolled[program].template[rows]).tolist():
        op = view.ops[template]
        rank = int(np.flatnonzero(view.program == program)[0])
        place = _place(view, rank, op)
        if op.root is not None and len(sizes) and not 0 <= op.root < sizes.min():
            yield Fault(place, f"root {op.root} is not an index in a group of {sizes.min()}")
        if op.splits_in is not None or op.splits_out is not None:
            yield from _split_faults(trace, op, who, place)
            continue
        size = message_bytes(op, int(sizes[0]) if len(sizes) else 1)
        if isinstance(size, PerRank) and op.collective != "all_to_all":
            values = per_rank(trace, size)[who.ranks]
            lead = values[who.ptr[:-1]][np.repeat(np.arange(len(who.sizes)), who.sizes)]
            if (bad := np.flatnonzero(values != lead)).size:
                at = int(who.ranks[bad[0]])
                yield Fault(
                    place, f"{op.collective}: rank {at} has {values[bad[0]]:g} bytes, its group {lead[bad[0]]:g}"
                )
            continue
        for members in sizes.tolist():
            reason = _side_reason(op, members)
            if reason:
                yield Fault(place, reason)


def _side_reason(op: Op, members: int) -> str:
    into, out = op.bytes_in, op.bytes_out
    if isinstance(into, PerRank) or isinstance(out, PerRank) or not into or not out:
        return ""
    whole, part = {"all_gather": (out, into), "reduce_scatter": (into, out)}.get(op.collective or "", (0, 0))
    if whole and whole != part * members:
        return f"{op.collective}: {whole:g} bytes is not {members} (group size) x {part:g}"
    if op.collective in ("all_reduce", "all_to_all", "broadcast") and into != out:
        return f"{op.collective}: bytes_in {into:g} and bytes_out {out:g} differ"
    return ""


def _split_faults(trace: Trace, op: Op, who: Communicators, place: str) -> Iterator[Fault]:
    sent, received = (split_bytes(trace, op, who, outgoing) for outgoing in (True, False))
    for name, splits in (("splits_in", sent), ("splits_out", received)):
        if splits is not None and splits.shape[1:] != (int(who.sizes.max()),):
            yield Fault(place, f"{name} has {splits.shape[1:]} parts for a group of {int(who.sizes.max())}")
            return
    if sent is None or received is None:
        return
    for c in range(len(who.sizes)):
        members = who.ranks[who.ptr[c] : who.ptr[c + 1]]
        difference = np.argwhere(sent[members] != received[members].T)
        if len(difference):
            i, j = difference[0].tolist()
            yield Fault(
                place,
                f"all_to_all: rank {members[i]} sends {sent[members[i], j]:g} bytes to rank {members[j]},"
                f" which expects {received[members[j], i]:g}",
            )
            return


def _pair_faults(view: _View) -> Iterator[Fault]:
    """Sends and receives by (group, source, destination, tag): same number, same sizes, in order."""
    ends: dict[str, list[NDArray[np.int64]]] = {"send": [], "recv": []}
    lines: list[tuple[int, Slot]] = []
    groups = {name: i for i, name in enumerate(["", *view.trace.groups])}
    for program, slots in enumerate(view.slots):
        ranks = np.flatnonzero(view.program == program)
        for slot in slots:
            if slot.kind == "collective" or not len(ranks):
                continue
            peer = dict(slot.peer) if isinstance(slot.peer, tuple) else slot.peer
            assert peer is not None
            peers = peer_of_rank(view.trace, peer)[ranks]
            source, target = (ranks, peers) if slot.kind == "send" else (peers, ranks)
            line = np.full(len(ranks), len(lines))
            lines.append((program, slot))
            group, tag = np.full(len(ranks), groups[slot.group]), np.full(len(ranks), slot.tag)
            ends[slot.kind].append(np.stack([group, source, target, tag, line], axis=1))
    tables = {kind: np.concatenate(parts) if parts else np.empty((0, 5), np.int64) for kind, parts in ends.items()}
    keys = np.concatenate([tables["send"][:, :4], tables["recv"][:, :4]])
    if not len(keys):
        return
    _, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.ravel()
    count = int(which.max()) + 1
    sends = np.full(count, -1)
    receives = np.full(count, -1)
    split = len(tables["send"])
    sends[which[:split]] = tables["send"][:, 4]
    receives[which[split:]] = tables["recv"][:, 4]
    example = np.full(count, -1)
    example[which[::-1]] = np.arange(len(which))[::-1]
    combinations, first = np.unique(np.stack([sends, receives], axis=1), axis=0, return_index=True)
    for (send, receive), at in zip(combinations.tolist(), first.tolist(), strict=True):
        _, source, target, tag = keys[example[at]].tolist()
        fault = _pair_fault(view, lines, send, receive, (source, target, tag))
        if fault:
            yield fault


def _pair_fault(
    view: _View, lines: list[tuple[int, Slot]], send: int, receive: int, ends: tuple[int, int, int]
) -> Fault | None:
    source, target, tag = ends
    sent = view.sequence(*lines[send]) if send >= 0 else []
    received = view.sequence(*lines[receive]) if receive >= 0 else []
    where = f"from rank {source} to rank {target}, tag {tag}"
    for k, (a, b) in enumerate(zip(sent, received, strict=False)):
        sizes = [per_rank(view.trace, message_bytes(op, 2))[rank] for op, rank in ((a, source), (b, target))]
        if sizes[0] != sizes[1] or a.dtype != b.dtype:
            return Fault(
                _place(view, source, a),
                f"message {k} {where}: {sizes[0]:g} bytes {a.dtype} sent, {sizes[1]:g} bytes {b.dtype} expected",
            )
    if len(sent) > len(received):
        op = sent[len(received)]
        return Fault(_place(view, source, op), f"send without receive: message {len(received)} {where}")
    if len(received) > len(sent):
        op = received[len(sent)]
        return Fault(_place(view, target, op), f"receive without send: message {len(sent)} {where}")
    return None
