"""Groups: every communicator and every pair of ranks that exchange messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.network.layout import layout_pattern
from emulator.replay.plans import GroupKind, Planner
from emulator.replay.variants import Variants
from emulator.rows import offsets
from emulator.trace.mesh import communicators, peer_of_rank
from emulator.trace.messages import Slot
from emulator.trace.schema import Trace

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """All groups: the kind of each, and the groups of each rank by the slots of its program (compressed rows)."""

    kinds: list[GroupKind]
    kind: Ints
    slot_ptr: Ints
    slots: Ints


def build_groups(trace: Trace, variants: Variants, planner: Planner) -> Groups:
    """Find all groups and plan what they do."""
    builder = _Builder(trace, variants, planner)
    builder.add_communicators()
    builder.add_pairs()
    return builder.finish()


def _distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of a table of small numbers, sorted, and which of them each row is."""
    code = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        values, compact = np.unique(column, return_inverse=True)
        code = code * len(values) + compact.ravel()
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return rows[first], which.ravel()


class _Builder:
    def __init__(self, trace: Trace, variants: Variants, planner: Planner) -> None:
        self.trace = trace
        self.variants = variants
        self.planner = planner
        self.kinds: list[GroupKind] = []
        self.kind_of: list[Ints] = []
        self.count = 0
        program_of = np.array([v.program for v in variants.variants], dtype=np.int64)
        self.program = program_of[variants.of_rank]
        widths = np.array([len(items.slots) for items in variants.items], dtype=np.int64)
        self.slot_ptr = offsets(widths[self.program])
        self.slots = np.full(int(self.slot_ptr[-1]), -1, dtype=np.int64)

    def put(self, ranks: Ints, slot: int, groups: Ints) -> None:
        self.slots[self.slot_ptr[ranks] + slot] = groups

    def ends(self, wanted: str) -> list[tuple[int, int, Slot]]:
        """(program, slot number, slot) of all slots that are collectives, or that are not."""
        return [
            (p, s, slot)
            for p, items in enumerate(self.variants.items)
            for s, slot in enumerate(items.slots)
            if (slot.kind == "collective") == (wanted == "collective")
        ]

    def add_communicators(self) -> None:
        names: dict[str, list[tuple[int, int]]] = {}
        for program, number, slot in self.ends("collective"):
            names.setdefault(slot.group, []).append((program, number))
        for name, ends in names.items():
            who = communicators(self.trace, name)
            used = np.zeros(len(who.sizes), dtype=bool)  # stages without experts never use theirs
            used[who.of_rank[np.isin(self.program, [program for program, _ in ends])]] = True
            index = np.cumsum(used) - 1
            for program, number in ends:
                ranks = np.flatnonzero(self.program == program)
                self.put(ranks, number, self.count + index[who.of_rank[ranks]])
            kind_of = np.empty(int(used.sum()), dtype=np.int64)
            for size in np.unique(who.sizes[used]).tolist():
                some = np.flatnonzero(used & (who.sizes == size))
                members = who.ranks[who.ptr[some][:, None] + np.arange(size)]
                self._kinds(name, Slot("collective", name, None, 0), index[some], members, kind_of)
            self._append(kind_of)

    def add_pairs(self) -> None:
        """One group for each (group, source, destination, tag); its two members are the sender and the receiver."""
        ends = self.ends("pair")
        if not ends:
            return
        names = {name: i for i, name in enumerate(["", *self.trace.groups])}
        keys, owners = [], []
        for program, number, slot in ends:
            ranks = np.flatnonzero(self.program == program)
            peer = dict(slot.peer) if isinstance(slot.peer, tuple) else slot.peer
            assert peer is not None
            peers = peer_of_rank(self.trace, peer)[ranks]
            source, target = (ranks, peers) if slot.kind == "send" else (peers, ranks)
            same = np.full(len(ranks), names[slot.group]), np.full(len(ranks), slot.tag)
            keys.append(np.stack([same[0], source, target, same[1]], axis=1))
            owners.append((ranks, number, slot))
        distinct, which = _distinct_rows(np.concatenate(keys))
        kind_of = np.empty(len(distinct), dtype=np.int64)
        at = 0
        sender_slot: dict[tuple[Slot, int], list[Ints]] = {}
        for ranks, number, slot in owners:
            group = which[at : at + len(ranks)]
            at += len(ranks)
            self.put(ranks, number, self.count + group)
            if slot.kind == "send":
                sender_slot.setdefault((slot, number), []).append(group)
        for (slot, _), parts in sender_slot.items():
            some = np.concatenate(parts)
            self._kinds(slot.group or "p2p", slot, some, distinct[some][:, 1:3], kind_of)
        self._append(kind_of)

    def _append(self, kind_of: Ints) -> None:
        self.kind_of.append(kind_of)
        self.count += len(kind_of)

    def _kinds(self, name: str, slot: Slot, some: Ints, members: Ints, kind_of: Ints) -> None:
        """Split instances by what their leaders do and how their members lie, and plan each kind."""
        leader = self.variants.of_rank[members[:, 0]]
        uneven = {v: self.planner.uneven(v, slot) for v in np.unique(leader).tolist()}
        columns = [leader[:, None], layout_pattern(self.planner.topology, self.planner.placement[members])]
        if any(uneven.values()):
            columns.append(np.arange(len(some))[:, None])  # uneven parts are each group's own
        table = np.concatenate(columns, axis=1)
        if (table == table[0]).all():
            which = np.zeros(len(table), dtype=np.int64)
        else:
            _, which = _distinct_rows(table)
        _, first = np.unique(which, return_index=True)
        for k, representative in enumerate(first.tolist()):
            mine = np.flatnonzero(which == k)
            kind = GroupKind(name=name, size=members.shape[1], instances=self.count + some[mine])
            kind_of[some[mine]] = len(self.kinds)
            self.kinds.append(kind)
            self.planner.plan(kind, slot, members[mine], int(leader[representative]))

    def finish(self) -> Groups:
        empty = np.empty(0, dtype=np.int64)
        return Groups(
            kinds=self.kinds,
            kind=np.concatenate([empty, *self.kind_of]),
            slot_ptr=self.slot_ptr,
            slots=self.slots,
        )
