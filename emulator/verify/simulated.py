"""From a simulated result back to the recorded ops: when each rank reads and publishes what, as the simulator says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from emulator.cost.lower import lower
from emulator.errors import InputError
from emulator.result.schema import Result
from emulator.trace.expand import Rows, templates, unroll
from emulator.trace.mesh import communicators, peer_of_rank
from emulator.trace.messages import Slot, slots_of_rows
from emulator.trace.schema import Op
from emulator.verify.accesses import conflicts, meetings
from emulator.verify.order import Event, Floats, Unit, by_time, without_rounding
from emulator.verify.recorded import CARRIED_OUT, Recorded


@dataclass(frozen=True)
class Schedule:
    """What the simulator computed for every rank of a recorded step.

    ``start``, ``end``: per rank, seconds by row of its (lowered) program; ``rows``, ``ops``: the lowered programs.
    """

    recorded: Recorded
    name: str
    rows: list[Rows]
    ops: list[Op]
    start: list[Floats]
    end: list[Floats]

    def units(self, rank: int) -> list[Unit]:
        """Units of a rank, in issue order. Ops that have nothing to carry out (waits) are left out."""
        unrolled = self.rows[self.recorded.program[rank]]
        found = []
        for row, template in enumerate(unrolled.template.tolist()):
            op = self.ops[template]
            if op.kind in CARRIED_OUT:
                ops = tuple(sorted(op.sources)) if op.sources else (op.id,)
                found.append(Unit(ops, float(self.start[rank][row]), float(self.end[rank][row])))
        return found

    def events(self, rank: int) -> list[Event]:
        """The order in which a rank starts and ends its units."""
        return by_time(self.units(rank))

    def conflict_check(self) -> tuple[int, list[str]]:
        """Conflicting pairs looked at, over all ranks, and those out of order."""
        pairs, found = 0, []
        for rank in range(self.recorded.world):
            units = self.units(rank)
            looked_at, wrong = conflicts(self.recorded.ops(rank), units, by_time(units), rank)
            pairs += looked_at
            found += wrong
        return pairs, found

    def meeting_check(self) -> tuple[int, list[str]]:
        """Collectives and messages, and those that end before their last member has come."""
        names, starts, ends, members = [], [], [], []
        for name, met in self._meetings().items():
            who = [rank for rank, _ in met]
            names.append(name)
            members.append(who)
            starts.append(np.array([self.start[rank][row] for rank, row in met]))
            ends.append(np.array([self.end[rank][row] for rank, row in met]))
        return len(names), meetings(starts, ends, names, members)

    def _meetings(self) -> dict[str, list[tuple[int, int]]]:
        """Every collective and message by name: (rank, row) of each who takes part."""
        trace = self.recorded.trace
        slots = [slots_of_rows(program, self.ops) for program in self.rows]
        who = {name: communicators(trace, name) for name in trace.groups}
        met: dict[str, list[tuple[int, int]]] = {}
        for rank, program in enumerate(self.recorded.program):
            for slot, listed in slots[program].items():
                for k, row in enumerate(listed.tolist()):
                    op = self.ops[self.rows[program].template[row]]
                    name = self._name(slot, op, rank, k, who)
                    met.setdefault(name, []).append((rank, row))
        return met

    def _name(self, slot: Slot, op: Op, rank: int, k: int, who: Mapping[str, object]) -> str:
        if slot.kind == "collective":
            number = int(who[slot.group].of_rank[rank])  # type: ignore[attr-defined]
            instance = f"{slot.group}[{number}]" if number else slot.group
            return f"{op.collective} {k} of group {instance}"
        peer = int(peer_of_rank(self.recorded.trace, op.peer if op.peer is not None else 0)[rank])
        ends = (rank, peer) if slot.kind == "send" else (peer, rank)
        return f"message {k} from rank {ends[0]} to rank {ends[1]}, tag {slot.tag}, group {slot.group}"


def schedule_of(recorded: Recorded, result: Result) -> Schedule:
    """The schedule that a result of ``emulator.run`` on the recorded trace holds. InputError if it has none."""
    lowered = lower(recorded.trace, "compile" if result.device.lowering == "compile" else "eager")
    ops = templates(lowered.trace).ops
    unrolled = unroll(lowered.trace, recorded.name)
    if result.world_size != recorded.world:
        raise InputError(f"the result has {result.world_size} ranks, {recorded.name} {recorded.world}", source="verify")
    start: list[Floats] = [np.empty(0)] * recorded.world
    end: list[Floats] = [np.empty(0)] * recorded.world
    for ranks in result.ranks:
        members = _members(ranks.ranks)
        count = len(unrolled[recorded.program[members[0]]])
        first, last = np.full(count, np.nan), np.full(count, np.nan)
        streams = []
        for line in result.timeline:
            if line.rank_class == ranks.rank_class:
                if len(line.op) and int(line.op.max()) >= count:
                    raise InputError("the result is of another trace", source=recorded.name)
                first[line.op], last[line.op] = line.start, line.end
                streams.append(np.sort(line.op))
        if np.isnan(first).any() or np.isnan(last).any():
            raise InputError("the result lacks times of some ops", source=recorded.name)
        first, last = without_rounding(first, last, streams)
        for rank in members:
            start[rank], end[rank] = first, last
    return Schedule(recorded, result.topology.name, unrolled, ops, start, end)


def _members(ranges: str) -> list[int]:
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
