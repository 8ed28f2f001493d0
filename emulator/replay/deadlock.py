"""Who waits for whom when a replay cannot go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from emulator.errors import AnswerIsNo
from emulator.trace.schema import Op

if TYPE_CHECKING:
    from emulator.replay.state import Group, Node

_LISTED = 4


class StuckError(Exception):
    """The replay came to an end before its ops did."""

    def __init__(self, nodes: Sequence[Node], names: Sequence[str]) -> None:
        super().__init__()
        self.nodes = nodes
        self.names = names


def explain(stuck: StuckError, ops: Sequence[Op], source: str) -> AnswerIsNo:
    """The error that names the communication ops that were posted and never met, and who is missing from each; where
    there are none, an op that never started. ``ops``: templates of the trace ``source``.
    """
    return _Explained(stuck.nodes, stuck.names, ops).error(source)


class _Explained:
    def __init__(self, nodes: Sequence[Node], names: Sequence[str], ops: Sequence[Op]) -> None:
        self.nodes = nodes
        self.names = names
        self.ops = ops

    def error(self, source: str) -> AnswerIsNo:
        members: dict[int, list[Node]] = {}
        for node in self.nodes:
            for group in {id(group): group for group in node.groups}.values():
                members.setdefault(id(group), []).append(node)
        lines = []
        seen: set[int] = set()
        for node in self.nodes:
            for group, item in _posted(node):
                if id(group) in seen:
                    continue
                seen.add(id(group))
                here = {arrived.index for arrived, _, _ in group.arrived}
                missing = [other for other in members[id(group)] if other.index not in here] or [node]
                waiting = ", ".join(f"{self._name(other)} ({self._doing(other)})" for other in missing[:_LISTED])
                more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
                lines.append(f"{self._name(node)} in {self._say(node, item)} waits for {waiting}{more}")
        if not lines:
            lines = [f"{self._name(node)} is {self._doing(node)}" for node in self.nodes if not all(node.done)]
        text = "; ".join(lines[:_LISTED])
        more = f"; and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
        return AnswerIsNo(f"the replay cannot go on: {text}{more}", source=source)

    def _name(self, node: Node) -> str:
        return self.names[node.index]

    def _say(self, node: Node, item: int) -> str:
        items = node.items
        row = int(items.rows[items.rows_ptr[item]])
        op = self.ops[items.source.template[row]]
        where = f"(op {op.id}, row {row})"
        for message in items.item_messages[item]:
            slot = items.slots[items.message_slot[message]]
            if slot.kind == "collective":
                return f"collective on group {slot.group!r} {where}"
            return f"{slot.kind} with peer {dict(slot.peer) if isinstance(slot.peer, tuple) else slot.peer} {where}"
        return f"{op.kind} {where}"

    def _doing(self, node: Node) -> str:
        """What a node that has not arrived is held in."""
        posted = _posted(node)
        if posted:
            return f"itself in {self._say(node, posted[0][1])}"
        heads = [
            listed[node.position[q]]
            for q, listed in enumerate(node.items.queue_items)
            if node.position[q] < len(listed)
        ]
        issued = [item for item in heads if node.items.epoch[item] <= node.epoch]
        blocked = issued or node.items.syncs[node.epoch : node.epoch + 1] or heads
        return f"held before {self._say(node, blocked[0])}" if blocked else "done"


def _posted(node: Node) -> list[tuple[Group, int]]:
    """Groups in which this node has arrived and waits, with its item."""
    found = []
    for group in {id(group): group for group in node.groups}.values():
        for arrived, item, _ in group.arrived:
            if arrived is node:
                found.append((group, item))
    return found
