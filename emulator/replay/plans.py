"""Plans: which algorithm a group uses for each of its messages, and what that puts on which link.

Instances of one group name with members placed alike and doing the same things form a *kind*: the choice of algorithm
and the routing are done once per kind, for all its instances together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.network import collectives
from emulator.network.bind import BoundPhase, bind
from emulator.network.choose import AUTO, Way, fastest_of, place_all, ways
from emulator.network.layout import Layout, layout
from emulator.network.nccl import PROTOCOLS
from emulator.replay.variants import Use, Variants
from emulator.rows import owners
from emulator.topology.graph import Topology
from emulator.trace.messages import Slot, split_bytes
from emulator.trace.schema import Op, Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PAIR = "send"


@dataclass(frozen=True)
class Plan:
    """How one use runs: phase numbers of the kind with the bytes of their largest flow, in sequence."""

    algorithm: str
    phases: tuple[tuple[int, float], ...]

    def rows(self, base: int) -> list[tuple[int, float]]:
        """The phases of a group whose phase rows begin at ``base``: (row, bytes)."""
        return [(base + phase, amount) for phase, amount in self.phases]


@dataclass
class GroupKind:
    """Groups that do the same things in the same way. ``bound`` holds (phase number, phase) for all ``instances``;
    ``share``: the part of the chip that the kernels of each instance take from what computes."""

    name: str
    size: int
    instances: Ints
    plans: dict[int, Plan] = field(default_factory=dict)
    bound: list[tuple[int, BoundPhase]] = field(default_factory=list)
    share: Floats = field(default_factory=lambda: np.zeros(1))

    @property
    def phases(self) -> int:
        """Number of distinct phases of all plans."""
        return len(self.bound)


def parse_algorithms(text: str) -> dict[str, str]:
    """``ring`` or ``all_reduce=ring,all_to_all=pairwise`` as {collective: algorithm}; key "" is the default.

    Names may be written as others write them (``double-binary-tree``), with a protocol behind (``ring/LL``).
    """
    chosen: dict[str, str] = {}
    known = {kind: collectives.names(kind) for kind in collectives.COLLECTIVES}
    for part in text.split(",") if text.strip() else ():
        given, equals, name = part.rpartition("=")
        kind = collectives.canonical(given)
        if equals and kind not in known:
            raise InputError(f"unknown collective {given!r}; known: {', '.join(known)}", source="--algo")
        valid = {AUTO, *known[kind]} if kind else {AUTO}.union(*known.values())
        algorithm, slash, protocol = name.partition("/")
        algorithm = collectives.canonical(algorithm)
        if algorithm not in valid or bool(slash) != bool(protocol):
            raise InputError(f"unknown algorithm {name!r}; known: {', '.join(sorted(valid))}", source="--algo")
        if protocol and protocol not in PROTOCOLS:
            known_protocols = ", ".join(PROTOCOLS)
            raise InputError(f"{name}: no protocol {protocol!r}; known: {known_protocols}", source="--algo")
        if kind in chosen:
            raise InputError(f"two algorithms for {kind or 'all collectives'}: {text!r}", source="--algo")
        chosen[kind] = algorithm + slash + protocol
    return chosen


@dataclass
class Touched:
    """Which knobs the plans of a job felt.

    ``algorithms``: keys of what was asked for (:func:`parse_algorithms`). The others are levels of links: ``levels``
    that anything crosses, ``latencies`` where the latencies of links count, ``tuned`` where a library's do instead,
    ``shares`` whose share of the chip decides what some group takes.
    """

    algorithms: set[str] = field(default_factory=set)
    levels: set[int] = field(default_factory=set)
    latencies: set[int] = field(default_factory=set)
    tuned: set[int] = field(default_factory=set)
    shares: set[int] = field(default_factory=set)


class Planner:
    """Chooses algorithms and routes them. ``placement`` i64[world] is the accelerator of each rank; what the groups
    named in ``free`` move takes no time; ``shares`` is the part of the chip that kernels on links of a level (by its
    name) take; ``notes`` collects what was asked for and does not apply, ``touched`` which knobs were felt."""

    def __init__(
        self,
        trace: Trace,
        ops: list[Op],
        variants: Variants,
        topology: Topology,
        algorithms: dict[str, str],
        placement: Ints,
        free: frozenset[str],
        shares: Mapping[str, float],
    ) -> None:
        self.trace = trace
        self.ops = ops
        self.variants = variants
        self.topology = topology
        self.algorithms = algorithms
        self.placement = placement
        self.free = free
        self.share_of_level = np.array([shares.get(name, 0.0) for name in topology.level_names] or [0.0])
        self.notes: dict[str, None] = {}
        self.touched = Touched()
        # Kept over all kinds: a job that has no closed form is planned a second time for its colours.
        self._weighed: dict[tuple[bytes, str, int], list[tuple[Way, tuple[BoundPhase, ...]]]] = {}

    def _positions(self, variant: int, slot: Slot) -> tuple[list[int], list[int]]:
        """Uses and op templates of a variant's messages on a slot, in issue order."""
        numbers = self.variants.variants[variant]
        items = self.variants.items[numbers.program]
        number = items.slots.index(slot)
        messages = [m for m, s in enumerate(items.message_slot) if s == number]
        templates = items.source.template[items.messages[messages]].tolist()
        return [numbers.message_use[m] for m in messages], templates

    def uneven(self, variant: int, slot: Slot) -> bool:
        return any(self.variants.uses[use].splits_of >= 0 for use in set(self._positions(variant, slot)[0]))

    def plan(self, kind: GroupKind, slot: Slot, ranks: Ints, leader: int) -> None:
        """Plan everything that the groups of a kind do on a slot.

        ``ranks`` i64[G, n]: the members of each instance; ``leader``: the variant of a first member. Algorithms are
        chosen by the predicted time of the first instance, then routed for all.
        """
        members = self.placement[ranks]
        uses, _ = self._positions(leader, slot)
        where = layout(self.topology, members[0])
        first = members[0].tobytes()
        routed: dict[tuple[str, int, str], tuple[int, ...]] = {}
        for position, use in enumerate(uses):
            if use in kind.plans:
                continue
            wanted = self.variants.uses[use]
            if wanted.splits_of >= 0:
                self._plan_uneven(kind, slot, ranks, position)
                continue
            key = (wanted.collective, max(wanted.root, 0))
            if (first, *key) not in self._weighed:
                asked = self._asked(kind, wanted, where)
                offered = ways(self.topology, key[0], where, asked, root=key[1])
                self._weighed[first, *key] = place_all(self.topology, members[:1], offered)
            way, _ = fastest_of(self._weighed[first, *key], wanted.bytes)
            if (*key, way.name) not in routed:
                routed[*key, way.name] = self._bind(kind, members, way)
            kind.plans[use] = self._as_plan(kind, way, routed[*key, way.name], wanted.bytes)
        self._make_free(kind)
        kind.share = self._shares(kind, len(ranks))

    def _shares(self, kind: GroupKind, instances: int) -> Floats:
        """The part of the chip that each instance takes: that of the most demanding kind of link it uses."""
        share = np.zeros(instances)
        if self.share_of_level.any():
            used = [(owners(phase.ptr), self.topology.link_level[phase.link]) for _, phase in kind.bound]
            for owner, level in used:
                np.maximum.at(share, owner, self.share_of_level[level])
            for owner, level in used:
                decides = self.share_of_level[level] == share[owner]
                self.touched.shares |= set(np.unique(level[decides]).tolist())
        return share

    def _make_free(self, kind: GroupKind) -> None:
        if kind.name in self.free:
            kind.bound = []
            kind.plans = {use: Plan(plan.algorithm, ()) for use, plan in kind.plans.items()}

    def _asked(self, kind: GroupKind, use: Use, where: Layout, splits: Floats | None = None) -> str:
        """The algorithm asked for if it applies to this group, else auto, with a note."""
        wanted = self.algorithms.get(use.collective, self.algorithms.get("", AUTO))
        if kind.size > 1 and use.collective != PAIR:
            self.touched.algorithms.add(use.collective if use.collective in self.algorithms else "")
        applying = collectives.algorithms(
            use.collective, kind.size, where.domains, where.grid, splits=splits, switches=self.topology.in_network,
            every=True,
        )  # fmt: skip
        if wanted.partition("/")[0] in applying:
            return wanted
        if wanted != AUTO and kind.size > 1 and use.collective != PAIR:
            self.notes[
                f"{wanted} does not apply to {use.collective} in group {kind.name!r} ({kind.size}): auto instead"
            ] = None
        return AUTO

    def _bind(self, kind: GroupKind, members: Ints, way: Way) -> tuple[int, ...]:
        start = len(kind.bound)
        placed = way.place(bind(self.topology, members, way.phases))
        kind.bound += [(start + i, phase) for i, phase in enumerate(placed)]
        levels = {level for phase in placed for level in np.unique(self.topology.link_level[phase.link]).tolist()}
        self.touched.levels |= levels
        (self.touched.tuned if way.protocol else self.touched.latencies).update(levels)
        return tuple(range(start, len(kind.bound)))

    def _as_plan(self, kind: GroupKind, way: Way, numbers: tuple[int, ...], size: float) -> Plan:
        placed = [kind.bound[i][1] for i in numbers]
        wire = size * way.stretch(placed, size)
        amounts = tuple((i, phase.fraction * wire) for i, phase in zip(numbers, placed, strict=True))
        return Plan(way.name, amounts)

    def _plan_uneven(self, kind: GroupKind, slot: Slot, ranks: Ints, position: int) -> None:
        """An all-to-all with uneven parts: the bytes of every pair come from the sender's own op."""
        splits = np.zeros((kind.size, kind.size))
        used = set()
        for i, rank in enumerate(ranks[0].tolist()):
            uses, templates = self._positions(int(self.variants.of_rank[rank]), slot)
            used.add(uses[position])
            op, alone = self.ops[templates[position]], np.array([rank])
            sent = split_bytes(self.trace, op, outgoing=True, ranks=alone)
            if sent is not None:
                splits[i] = sent[0]
            else:  # only what it receives is known
                received = split_bytes(self.trace, op, outgoing=False, ranks=alone)
                assert received is not None
                splits[:, i] = received[0]
        members = self.placement[ranks]
        size = float(splits.sum(axis=1).max())
        where = layout(self.topology, members[0])
        asked = self._asked(kind, self.variants.uses[min(used)], where, splits)
        offered = ways(self.topology, "all_to_all", where, asked, splits=splits)
        way, _ = fastest_of(place_all(self.topology, members, offered), size)
        plan = self._as_plan(kind, way, self._bind(kind, members, way), size)
        for use in used:
            kind.plans[use] = plan
