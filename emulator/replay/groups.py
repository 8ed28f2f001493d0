"""Groups: every communicator and every pair of ranks that exchange messages, and what they do on this topology.

Instances of one group name with members placed alike and doing the same things form a *kind*: algorithm choice and
routing are done once per kind, for all its instances together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.network import collectives
from emulator.network.bind import BoundPhase, bind, domain_pattern, predict
from emulator.replay.variants import Use, Variants
from emulator.topology.graph import Topology
from emulator.trace.expand import Rows
from emulator.trace.mesh import communicators, peer_of_rank
from emulator.trace.messages import Slot, split_bytes
from emulator.trace.schema import Op, Trace

Ints = NDArray[np.int64]
AUTO = "auto"
PAIR = "send"


@dataclass(frozen=True)
class Plan:
    """How one use runs: phase numbers of the kind with the bytes of their largest flow, in sequence."""

    algorithm: str
    phases: tuple[tuple[int, float], ...]
    alone_seconds: float


@dataclass
class GroupKind:
    """Groups that do the same things in the same way. ``bound`` holds (phase number, phase) for all ``instances``."""

    name: str
    size: int
    instances: Ints
    plans: dict[int, Plan] = field(default_factory=dict)
    bound: list[tuple[int, BoundPhase]] = field(default_factory=list)

    @property
    def phases(self) -> int:
        """Number of distinct phases of all plans."""
        return len(self.bound)


@dataclass(frozen=True)
class Groups:
    """All groups: the kind of each, and the groups of each rank by the slots of its program (compressed rows)."""

    kinds: list[GroupKind]
    kind: Ints
    slot_ptr: Ints
    slots: Ints
    members_ptr: Ints
    members: Ints
    notes: list[str]


def parse_algorithms(text: str) -> dict[str, str]:
    """``ring`` or ``all_reduce=ring,all_to_all=pairwise`` as {collective: algorithm}; key "" is the default."""
    chosen: dict[str, str] = {}
    known = {c: set(collectives.algorithms(c, 4, [0, 0, 1, 1])) for c in collectives.COLLECTIVES}
    names = {AUTO}.union(*known.values())
    for part in filter(None, text.split(",")):
        kind, _, name = part.rpartition("=")
        if kind and kind not in known:
            raise InputError(f"unknown collective {kind!r}; known: {', '.join(known)}", source="--algo")
        valid = {AUTO, *known[kind]} if kind else names
        if name not in valid:
            raise InputError(f"unknown algorithm {name!r}; known: {', '.join(sorted(valid))}", source="--algo")
        chosen[kind] = name
    return chosen


def build_groups(
    trace: Trace, rows: list[Rows], ops: list[Op], variants: Variants, topology: Topology, algorithms: dict[str, str]
) -> Groups:
    """Find all groups, choose their algorithms and route them. Rank r runs on accelerator r."""
    builder = _Builder(trace, rows, ops, variants, topology, algorithms)
    builder.add_communicators()
    builder.add_pairs()
    return builder.finish()


class _Builder:
    def __init__(
        self, trace: Trace, rows: list[Rows], ops: list[Op], variants: Variants, topology: Topology,
        algorithms: dict[str, str],
    ) -> None:  # fmt: skip
        self.trace = trace
        self.rows = rows
        self.ops = ops
        self.variants = variants
        self.topology = topology
        self.algorithms = algorithms
        self.kinds: list[GroupKind] = []
        self.kind_of: list[Ints] = []
        self.members: list[Ints] = []
        self.sizes: list[Ints] = []
        self.count = 0
        self.notes: dict[str, None] = {}
        program_of = np.array([v.program for v in variants.variants], dtype=np.int64)
        self.program = program_of[variants.of_rank]
        widths = np.array([len(items.slots) for items in variants.items], dtype=np.int64)
        self.slot_ptr = np.concatenate([[0], np.cumsum(widths[self.program])]).astype(np.int64)
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
            for program, number in ends:
                ranks = np.flatnonzero(self.program == program)
                self.put(ranks, number, self.count + who.of_rank[ranks])
            kind_of = np.empty(len(who.sizes), dtype=np.int64)
            for size in np.unique(who.sizes).tolist():
                some = np.flatnonzero(who.sizes == size)
                members = who.ranks[who.ptr[some][:, None] + np.arange(size)]
                self._kinds(name, Slot("collective", name, None, 0), some, members, kind_of)
            self._append(kind_of, who.ranks, who.sizes)

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
        distinct, which = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
        which = which.ravel()
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
        self._append(kind_of, distinct[:, 1:3].ravel(), np.full(len(distinct), 2))

    def _append(self, kind_of: Ints, members: Ints, sizes: Ints) -> None:
        self.kind_of.append(kind_of)
        self.members.append(members)
        self.sizes.append(sizes)
        self.count += len(kind_of)

    def _kinds(self, name: str, slot: Slot, some: Ints, members: Ints, kind_of: Ints) -> None:
        """Split instances by what their leaders do and how their members lie, and plan each kind."""
        leader = self.variants.of_rank[members[:, 0]]
        uneven = {v: self._uneven(v, slot) for v in np.unique(leader).tolist()}
        columns = [leader[:, None], domain_pattern(self.topology, members)]
        if any(uneven.values()):
            columns.append(np.arange(len(some))[:, None])  # uneven parts are each group's own
        _, first, which = np.unique(np.concatenate(columns, axis=1), axis=0, return_index=True, return_inverse=True)
        which = which.ravel()
        for k, representative in enumerate(first.tolist()):
            mine = np.flatnonzero(which == k)
            kind = GroupKind(name=name, size=members.shape[1], instances=self.count + some[mine])
            kind_of[some[mine]] = len(self.kinds)
            self.kinds.append(kind)
            self._plan(kind, slot, members[mine], int(leader[representative]))

    def _positions(self, variant: int, slot: Slot) -> tuple[list[int], list[int]]:
        """Uses and op templates of a variant's messages on a slot, in issue order."""
        numbers = self.variants.variants[variant]
        items = self.variants.items[numbers.program]
        number = items.slots.index(slot)
        messages = [m for m, s in enumerate(items.message_slot) if s == number]
        templates = items.source.template[items.messages[messages]].tolist()
        return [numbers.message_use[m] for m in messages], templates

    def _uneven(self, variant: int, slot: Slot) -> bool:
        return any(self.variants.uses[use].splits_of >= 0 for use in set(self._positions(variant, slot)[0]))

    def _plan(self, kind: GroupKind, slot: Slot, members: Ints, leader: int) -> None:
        uses, _ = self._positions(leader, slot)
        planned: dict[tuple[str, str, int], tuple[int, ...]] = {}
        for position, use in enumerate(uses):
            if use in kind.plans:
                continue
            wanted = self.variants.uses[use]
            if wanted.splits_of >= 0:
                self._plan_uneven(kind, slot, members, position)
                continue
            for algorithm, numbers in self._candidates(kind, members, wanted, planned):
                plan = self._as_plan(kind, algorithm, numbers, wanted.bytes)
                best = kind.plans.get(use)
                if best is None or plan.alone_seconds < best.alone_seconds * (1 - 1e-9):
                    kind.plans[use] = plan
        self._drop_unused(kind)

    def _candidates(
        self, kind: GroupKind, members: Ints, use: Use, planned: dict[tuple[str, str, int], tuple[int, ...]]
    ) -> list[tuple[str, tuple[int, ...]]]:
        """The allowed algorithms of a use, each bound once per kind."""
        domains = domain_pattern(self.topology, members[:1])[0]
        offered = collectives.algorithms(use.collective, kind.size, domains)
        names = self._allowed(kind, use.collective, offered)
        root = max(use.root, 0)
        found = []
        for name in names:
            key = (use.collective, name, root)
            if key not in planned:
                phases = collectives.phases(use.collective, name, kind.size, domains=domains, root=root)
                planned[key] = self._bind(kind, members, phases)
            found.append((name, planned[key]))
        return found

    def _allowed(self, kind: GroupKind, collective: str, offered: list[str]) -> list[str]:
        """The algorithm asked for if it applies to this group (a note if not), else all that do."""
        wanted = self.algorithms.get(collective, self.algorithms.get("", AUTO))
        if wanted in offered:
            return [wanted]
        if wanted != AUTO and kind.size > 1 and collective != PAIR:
            self.notes[
                f"{wanted} does not apply to {collective} in group {kind.name!r} ({kind.size}): auto instead"
            ] = None
        return offered

    def _bind(self, kind: GroupKind, members: Ints, phases: tuple[collectives.Phase, ...]) -> tuple[int, ...]:
        start = len(kind.bound)
        kind.bound += [(start + i, phase) for i, phase in enumerate(bind(self.topology, members, phases))]
        return tuple(range(start, len(kind.bound)))

    def _as_plan(self, kind: GroupKind, algorithm: str, numbers: tuple[int, ...], size: float) -> Plan:
        bound = [kind.bound[i][1] for i in numbers]
        alone = float(predict(bound, size).max()) if bound else 0.0
        return Plan(algorithm, tuple((i, p.fraction * size) for i, p in zip(numbers, bound, strict=True)), alone)

    def _plan_uneven(self, kind: GroupKind, slot: Slot, members: Ints, position: int) -> None:
        """An all-to-all with uneven parts: the bytes of every pair come from the sender's own op."""
        who = communicators(self.trace, slot.group)
        splits = np.zeros((kind.size, kind.size))
        used = set()
        for i, rank in enumerate(members[0].tolist()):
            uses, templates = self._positions(int(self.variants.of_rank[rank]), slot)
            used.add(uses[position])
            op = self.ops[templates[position]]
            sent = split_bytes(self.trace, op, who, outgoing=True)
            if sent is not None:
                splits[i] = sent[rank]
            else:  # only what it receives is known
                received = split_bytes(self.trace, op, who, outgoing=False)
                assert received is not None
                splits[:, i] = received[rank]
        size = float(splits.sum(axis=1).max())
        domains = domain_pattern(self.topology, members[:1])[0]
        offered = collectives.algorithms("all_to_all", kind.size, domains)
        best: Plan | None = None
        for name in self._allowed(kind, "all_to_all", offered):
            phases = collectives.phases("all_to_all", name, kind.size, domains=domains, splits=splits)
            plan = self._as_plan(kind, name, self._bind(kind, members, phases), size)
            if best is None or plan.alone_seconds < best.alone_seconds * (1 - 1e-9):
                best = plan
        assert best is not None
        for use in used:
            kind.plans[use] = best

    @staticmethod
    def _drop_unused(kind: GroupKind) -> None:
        """Forget the phases of algorithms that were weighed and not chosen."""
        chosen = sorted({i for plan in kind.plans.values() for i, _ in plan.phases})
        number = {old: new for new, old in enumerate(chosen)}
        kind.bound = [(number[i], kind.bound[i][1]) for i in chosen]
        kind.plans = {
            use: Plan(plan.algorithm, tuple((number[i], amount) for i, amount in plan.phases), plan.alone_seconds)
            for use, plan in kind.plans.items()
        }

    def finish(self) -> Groups:
        empty = np.empty(0, dtype=np.int64)
        sizes = np.concatenate([empty, *self.sizes])
        return Groups(
            kinds=self.kinds,
            kind=np.concatenate([empty, *self.kind_of]),
            slot_ptr=self.slot_ptr,
            slots=self.slots,
            members_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            members=np.concatenate([empty, *self.members]),
            notes=list(self.notes),
        )
