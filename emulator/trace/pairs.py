"""Does every send have its receive? By (group, source, destination, tag): same number, same sizes, in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.trace.expand import used
from emulator.trace.fault import Fault
from emulator.trace.match import Ints, Sequences, axes_that_matter, is_open, place
from emulator.trace.mesh import peer_of_rank, program_of_rank, sample
from emulator.trace.messages import Slot, message_bytes, message_sizes
from emulator.trace.schema import Op

_NOBODY = -1


def pair_faults(view: Sequences) -> Iterator[Fault]:
    """Sends and receives that do not fit together."""
    lines = [(program, slot) for program, slots in enumerate(view.slots) for slot in slots if slot.kind != "collective"]
    if not lines:
        return
    ends = _Ends(view, lines)
    if (fault := ends.fault()) is not None:
        yield fault
        return
    both = np.stack([ends.of_kind("send"), ends.of_kind("recv")], axis=1)
    combinations, which = np.unique(both, axis=0, return_inverse=True)
    for number, (send, receive) in enumerate(combinations.tolist()):
        here = np.flatnonzero(which.ravel() == number)
        fault = _pair_fault(view, lines, send, receive, ends.source[here], ends.target[here])
        if fault is not None:
            yield fault


class _Ends:
    """All ends of messages: which line of which program speaks from ``source`` to ``target``."""

    def __init__(self, view: Sequences, lines: list[tuple[int, Slot]]) -> None:
        trace = view.trace
        ranks = _sample(view, lines)
        program = program_of_rank(trace, ranks)
        groups = {name: i for i, name in enumerate(["", *trace.groups])}
        channels: dict[tuple[int, int], int] = {}
        mine, line, sending, pair, channel = [], [], [], [], []
        world = trace.world_size
        for number, (p, slot) in enumerate(lines):
            own = ranks[program == p]
            peer = dict(slot.peer) if isinstance(slot.peer, tuple) else slot.peer
            assert peer is not None
            other = peer_of_rank(trace, peer, own)
            mine.append(own)
            line.append(np.full(len(own), number))
            sending.append(np.full(len(own), slot.kind == "send"))
            pair.append(own * world + other if slot.kind == "send" else other * world + own)
            which = channels.setdefault((groups[slot.group], slot.tag), len(channels))
            channel.append(np.full(len(own), which))
        self.view, self.lines = view, lines
        self.line, self.sending, self.mine = np.concatenate(line), np.concatenate(sending), np.concatenate(mine)
        pairs, index = np.unique(np.concatenate(pair), return_inverse=True)
        keys, self.key = np.unique(index.ravel() * len(channels) + np.concatenate(channel), return_inverse=True)
        self.key = self.key.ravel()
        self.source, self.target = np.divmod(pairs[keys // len(channels)], world)

    def of_kind(self, kind: str) -> Ints:
        """The line that sends (or receives) on each key, if there is one."""
        found = np.full(len(self.source), _NOBODY)
        chosen = self.sending == (kind == "send")
        found[self.key[chosen]] = self.line[chosen]
        return found

    def fault(self) -> Fault | None:
        """A rank that is its own peer, or two lines of one program that mean the same messages."""
        alone = np.flatnonzero((self.source == self.target)[self.key])
        if len(alone):
            return self._fault(int(alone[0]), "sends to or receives from itself")
        order = np.lexsort([self.sending, self.key])
        same = (np.diff(self.key[order]) == 0) & (np.diff(self.sending[order].astype(np.int64)) == 0)
        twice = np.flatnonzero(same)
        if not len(twice):
            return None
        a, b = order[twice[0]], order[twice[0] + 1]
        first = self.lines[self.line[a]][1].peer
        text = f"names one peer in two ways ({_peer(first)} and {_peer(self.lines[self.line[b]][1].peer)})"
        return self._fault(int(b), text)

    def _fault(self, end: int, reason: str) -> Fault:
        program, slot = self.lines[self.line[end]]
        rank = int(self.mine[end])
        return Fault(place(self.view, program, rank, int(self.view.slots[program][slot][0])), f"rank {rank} {reason}")


def _peer(peer: object) -> str:
    return str(dict(peer)) if isinstance(peer, tuple) else f"rank {peer}"


def _sample(view: Sequences, lines: list[tuple[int, Slot]]) -> Ints:
    """Ranks that stand for all: peers that are mesh offsets never leave the axes they go along."""
    trace = view.trace
    axes: list[str] = []
    ops: list[Op] = []
    for program, slot in lines:
        axes += [axis for axis, _ in slot.peer] if isinstance(slot.peer, tuple) else trace.mesh.axes
        ops += [view.ops[t] for t in used(view.slots[program][slot]).tolist()]
    return sample(trace, axes_that_matter(trace, ops, axes))


def _pair_fault(
    view: Sequences, lines: list[tuple[int, Slot]], send: int, receive: int, sources: Ints, targets: Ints
) -> Fault | None:
    """What is wrong between the ranks ``sources[i]`` and ``targets[i]``, which all use the same two lines."""
    nothing = np.empty(0, np.int64)
    source, target = int(sources[0]), int(targets[0])
    (sender, sent), (receiver, received) = (
        (lines[n][0], view.slots[lines[n][0]][lines[n][1]]) if n >= 0 else (_NOBODY, nothing) for n in (send, receive)
    )
    tag = lines[max(send, receive)][1].tag
    where = f"from rank {source} to rank {target}, tag {tag}"
    shared = min(len(sent), len(received))
    for a, b in view.together(sent[:shared], received[:shared]):
        fault = _size_fault(view, (sender, a), (receiver, b), sources, targets, tag)
        if fault is not None:
            return fault
    if len(sent) > shared:
        at = place(view, sender, source, int(sent[shared]))
        return Fault(at, f"send without receive: message {shared} {where}")
    if len(received) > shared:
        at = place(view, receiver, target, int(received[shared]))
        return Fault(at, f"receive without send: message {shared} {where}")
    return None


def _size_fault(
    view: Sequences, sender: tuple[int, int], receiver: tuple[int, int], sources: Ints, targets: Ints, tag: int
) -> Fault | None:
    """Sender and receiver (program, template) of one message agree on bytes and dtype."""
    a, b = view.ops[sender[1]], view.ops[receiver[1]]
    if not is_open(message_bytes(a, 2)) and not is_open(message_bytes(b, 2)):
        sources, targets = sources[:1], targets[:1]
    sent, expected = message_sizes(view.trace, a, sources, 2), message_sizes(view.trace, b, targets, 2)
    bad = np.flatnonzero(sent != expected) if a.dtype == b.dtype else np.zeros(1, np.int64)
    if not len(bad):
        return None
    i = int(bad[0])
    return Fault(
        place(view, sender[0], int(sources[i]), sender[1]),
        f"message from rank {sources[i]} to rank {targets[i]}, tag {tag}: {sent[i]:g} bytes {a.dtype} sent,"
        f" {expected[i]:g} bytes {b.dtype} expected by op {b.id}",
    )
