"""The program of one rank as it is written down: ops in issue order, with what each has to wait for.

A dependency comes from a storage (the last op that wrote what is read or overwritten, and the ops that read what is
overwritten) or from a wait. Those that follow from the order on a stream, or from what the stream has already waited
for, are left out: every stream carries a vector clock of how far it has seen the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from emulator.capture.storages import Storages
from emulator.trace.schema import Op

GROUP_STREAM = "group:"  # prefix of a stream that belongs to a communicator, until that has its name
Touched = list[tuple[int, int]]  # storage id, bytes


def lane_of(op: Op) -> str:
    """What orders an op: its stream, or, for a lone send or receive, the peer and direction (those do not wait for
    each other, though they share a stream)."""
    lone = op.kind in ("send", "recv") and op.batch is None
    return f"{op.stream} {op.kind} {op.peer}" if lone else op.stream


class Tape:
    """Ops of one rank in the order the host issued them. ``notes`` counts what was left out or guessed; ``waits`` lists
    every wait, those that were left out too: at which op, which stream, for which op."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.storages = Storages(self.ops)
        self.notes: Counter[str] = Counter()
        self.waits: list[tuple[int, str, int]] = []
        self._lane: list[str] = []  # of each op
        self._lanes: dict[str, set[str]] = {}  # stream -> lanes of lone messages on it
        self._last: dict[str, int] = {}  # lane -> its last op
        self._seen: dict[str, dict[str, int]] = {}  # lane -> other lane -> last op of it that it waited for
        self._seen_by: list[dict[str, int]] = []  # the same as it stood at each op (shared, never changed in place)
        self._writer: dict[int, int] = {}  # storage -> op that wrote it last
        self._readers: dict[int, list[int]] = {}  # storage -> ops that read it since

    def last_on(self, stream: str) -> int | None:
        """The op issued last on a stream, if there is one."""
        return self._last.get(stream)

    def add(
        self,
        op: Op,
        *,
        after: Iterable[int] = (),
        reads: Touched = [],  # noqa: B006 - never changed
        writes: Touched = [],  # noqa: B006
        touched: Sequence[int] = (),
    ) -> int:
        """Append ``op``, after the ops named in ``after`` and those its storages imply; fills in id, deps and storages.

        ``touched`` are storages that count as written for the order of ops though nobody says so (c10d ops do not
        declare what they write). Returns the op's id.
        """
        op.id = index = len(self.ops)
        op.reads, op.writes = list(reads), list(writes)
        written = {storage for storage, _ in writes} | set(touched)
        deps = set(after)
        data = set()
        for storage in {storage for storage, _ in reads} | written:
            if storage in self._writer:
                data.add(self._writer[storage])
        for storage in written:
            data.update(self._readers.get(storage, ()))
            self._writer[storage] = index
            self._readers[storage] = []
        for storage, _ in reads:
            if storage not in written:
                self._readers.setdefault(storage, []).append(index)
        lane = self._enter_lane(op)
        deps = self._needed(lane, deps)
        self._wait_for(lane, deps)
        unguarded = self._needed(lane, data)
        if unguarded:
            self.notes["data_dependencies_without_a_wait"] += len(unguarded)
            self._wait_for(lane, unguarded)
        op.deps = sorted(deps | unguarded)
        self.ops.append(op)
        self._lane.append(lane)
        self._seen_by.append(self._seen.setdefault(lane, {}))
        self._last[lane] = index
        return index

    def _enter_lane(self, op: Op) -> str:
        """The op's lane, which has seen what comes before the op on its stream: a lone message follows all but other
        lone messages, anything else follows those too."""
        lane = lane_of(op)
        if lane == op.stream:
            before = [self._last[other] for other in self._lanes.get(op.stream, ())]
        else:
            self._lanes.setdefault(op.stream, set()).add(lane)
            before = [self._last[op.stream]] if op.stream in self._last else []
        self._wait_for(lane, self._needed(lane, set(before)))
        return lane

    def wait(self, stream: str, target: int | None, tags: dict[str, Any], *, touched: Sequence[int] = ()) -> None:
        """Block a stream until op ``target`` is done; left out (and counted) if order or earlier waits imply it."""
        if target is not None and self._needed(stream, {target}):
            self.add(Op(id=0, kind="wait", stream=stream, **tags), after=[target], touched=touched)
        else:
            self.notes["waits_without_effect"] += 1
        if target is not None:
            self.waits.append((len(self.ops), stream, target))

    def last_use(self, storage: int) -> int | None:
        """The op that read or wrote a storage last, None if none did."""
        ops = [*self._readers.get(storage, ()), self._writer.get(storage, -1)]
        return max(ops) if max(ops) >= 0 else None

    def _needed(self, lane: str, ops: set[int]) -> set[int]:
        """Those of ``ops`` that order on the lane and earlier waits do not imply, and none that another implies."""
        seen = self._seen.get(lane, {})
        latest: dict[str, int] = {}
        for op in ops:
            other = self._lane[op]
            if other != lane and op > seen.get(other, -1) and op > latest.get(other, -1):
                latest[other] = op
        return {
            op
            for op in latest.values()
            if not any(self._seen_by[more].get(self._lane[op], -1) >= op for more in latest.values() if more != op)
        }

    def _wait_for(self, lane: str, ops: set[int]) -> None:
        if not ops:
            return
        seen = dict(self._seen.get(lane, {}))
        for op in ops:
            other = self._lane[op]
            for behind, index in (*self._seen_by[op].items(), (other, op)):
                if behind != lane and index > seen.get(behind, -1):
                    seen[behind] = index
        self._seen[lane] = seen
