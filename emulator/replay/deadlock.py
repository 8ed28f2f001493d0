"""Who waits for whom when a replay cannot go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from emulator.errors import AnswerIsNo

if TYPE_CHECKING:
    from emulator.replay.state import Group, Node

_LISTED = 4


def explain(nodes: Sequence[Node], names: Sequence[str]) -> AnswerIsNo:
    """The error that names the communication ops that were posted and never met, and who is missing from each."""
    members: dict[int, list[Node]] = {}
    for node in nodes:
        for group in {id(group): group for group in node.groups}.values():
            members.setdefault(id(group), []).append(node)
    lines = []
    seen: set[int] = set()
    for node in nodes:
        for group, item in _posted(node):
            if id(group) in seen:
                continue
            seen.add(id(group))
            here = {arrived.index for arrived, _, _ in group.arrived}
            missing = [other for other in members[id(group)] if other.index not in here] or [node]
            waiting = ", ".join(f"{_name(names, other)} ({_doing(other)})" for other in missing[:_LISTED])
            more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
            lines.append(f"{_name(names, node)} in {_say(node, item)} waits for {waiting}{more}")
    text = "; ".join(lines[:_LISTED]) or "no op can start"
    more = f"; and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    return AnswerIsNo(f"the replay cannot go on: {text}{more}")


def _name(names: Sequence[str], node: Node) -> str:
    return names[node.index]


def _posted(node: Node) -> list[tuple[Group, int]]:
    """Groups in which this node has arrived and waits, with its item."""
    found = []
    for group in {id(group): group for group in node.groups}.values():
        for arrived, item, _ in group.arrived:
            if arrived is node:
                found.append((group, item))
    return found


def _say(node: Node, item: int) -> str:
    items = node.items
    row = int(items.rows[items.rows_ptr[item]])
    for message in items.item_messages[item]:
        slot = items.slots[items.message_slot[message]]
        if slot.kind == "collective":
            return f"collective on group {slot.group!r} (row {row})"
        return f"{slot.kind} with peer {dict(slot.peer) if isinstance(slot.peer, tuple) else slot.peer} (row {row})"
    return f"row {row}"


def _doing(node: Node) -> str:
    """What a node that has not arrived is held in."""
    posted = _posted(node)
    if posted:
        return f"itself in {_say(node, posted[0][1])}"
    blocked = [
        listed[node.position[q]] for q, listed in enumerate(node.items.queue_items) if node.position[q] < len(listed)
    ]
    return f"held before {_say(node, blocked[0])}" if blocked else "done"
