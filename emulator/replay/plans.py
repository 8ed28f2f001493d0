"""Plans: which algorithm a group uses for each of its messages, and what that puts on which link.

Instances of one group name with members placed alike and doing the same things form a *kind*: the choice of algorithm
and the routing are done once per kind, for all its instances together.
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
from emulator.trace.mesh import communicators
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

    def rows(self, base: int) -> list[tuple[int, float]]:
        """The phases of a group whose phase rows begin at ``base``: (row, bytes)."""
        return [(base + phase, amount) for phase, amount in self.phases]


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


class Planner:
    """Chooses algorithms and routes them. ``placement`` i64[world] is the accelerator of each rank; ``notes`` collects
    what was asked for and does not apply."""

    def __init__(
        self,
        trace: Trace,
        ops: list[Op],
        variants: Variants,
        topology: Topology,
        algorithms: dict[str, str],
        placement: Ints,
    ) -> None:
        self.trace = trace
        self.ops = ops
        self.variants = variants
        self.topology = topology
        self.algorithms = algorithms
        self.placement = placement
        self.notes: dict[str, None] = {}

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
        weighed: dict[tuple[str, str, int], tuple[BoundPhase, ...]] = {}
        routed: dict[tuple[str, str, int], tuple[int, ...]] = {}
        domains = domain_pattern(self.topology, members[:1])[0]
        for position, use in enumerate(uses):
            if use in kind.plans:
                continue
            wanted = self.variants.uses[use]
            if wanted.splits_of >= 0:
                self._plan_uneven(kind, slot, ranks, position)
                continue
            key = self._choose(kind, members[:1], wanted, domains, weighed)
            if key not in routed:
                phases = collectives.phases(*key[:2], kind.size, domains=domains, root=key[2])
                routed[key] = self._bind(kind, members, phases)
            kind.plans[use] = self._as_plan(kind, key[1], routed[key], wanted.bytes)

    def _choose(
        self,
        kind: GroupKind,
        members: Ints,
        use: Use,
        domains: Ints,
        weighed: dict[tuple[str, str, int], tuple[BoundPhase, ...]],
    ) -> tuple[str, str, int]:
        """(collective, algorithm, root) of the fastest allowed algorithm; of equal ones the first offered."""
        offered = collectives.algorithms(use.collective, kind.size, domains)
        keys = [(use.collective, name, max(use.root, 0)) for name in self._allowed(kind, use.collective, offered)]
        if len(keys) == 1:
            return keys[0]
        best, best_seconds = keys[0], np.inf
        for key in keys:
            if key not in weighed:
                phases = collectives.phases(*key[:2], kind.size, domains=domains, root=key[2])
                weighed[key] = bind(self.topology, members, phases)
            seconds = float(predict(weighed[key], use.bytes).max())
            if seconds < best_seconds * (1 - 1e-9):
                best, best_seconds = key, seconds
        return best

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

    def _plan_uneven(self, kind: GroupKind, slot: Slot, ranks: Ints, position: int) -> None:
        """An all-to-all with uneven parts: the bytes of every pair come from the sender's own op."""
        who = communicators(self.trace, slot.group)
        splits = np.zeros((kind.size, kind.size))
        used = set()
        for i, rank in enumerate(ranks[0].tolist()):
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
        members = self.placement[ranks]
        size = float(splits.sum(axis=1).max())
        domains = domain_pattern(self.topology, members[:1])[0]
        offered = collectives.algorithms("all_to_all", kind.size, domains)
        best: tuple[float, str, tuple[collectives.Phase, ...]] | None = None
        for name in self._allowed(kind, "all_to_all", offered):
            phases = collectives.phases("all_to_all", name, kind.size, domains=domains, splits=splits)
            seconds = float(predict(bind(self.topology, members, phases), size).max()) if phases else 0.0
            if best is None or seconds < best[0] * (1 - 1e-9):
                best = (seconds, name, phases)
        assert best is not None
        plan = self._as_plan(kind, best[1], self._bind(kind, members, best[2]), size)
        for use in used:
            kind.plans[use] = plan
