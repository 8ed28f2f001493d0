"""Carrying out a collective schedule on tensors: by one process per player, or by a model in a single process.

Both follow the memory model of :mod:`emulator.network.collectives.schedule`: an entry sends the sender's slot as it was
before the step, and a receiver adds in the order of the entries. So floating-point sums come out in the schedule's
declared order, and the two must agree bit for bit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from emulator.network.collectives import Step
from emulator.verify.plan import Plan

Tensor = Any  # torch is not typed here
DTYPES = ("int64", "float64", "float32", "bfloat16")


def contribution(what: Plan, dtype: str, member: int, chunk: int) -> Tensor:
    """What ``member`` brings for ``chunk``: the same in every process. Integers are small enough to add exactly."""
    size = int(what.sizes[chunk])
    if what.tells_only:
        return torch.nn.functional.one_hot(torch.tensor(member), size)
    generator = torch.Generator().manual_seed(1 + member * 1_000_003 + chunk * 7919)
    if dtype == "int64":
        return torch.randint(-1000, 1000, (size,), generator=generator)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))


class Slots:
    """The slots of one player: one buffer, and which chunks of it hold something. The rest is poisoned."""

    def __init__(self, what: Plan, dtype: str, player: int) -> None:
        kind = torch.int64 if what.tells_only else getattr(torch, dtype)
        poison = -(1 << 40) if kind == torch.int64 else float("nan")
        self.buffer = torch.full((what.elements,), poison, dtype=kind)
        self.held = what.before[player].copy()
        self._what = what
        self._offsets = what.offsets().tolist()
        for chunk in np.flatnonzero(self.held).tolist():
            self.of(chunk).copy_(contribution(what, dtype, player, chunk))

    def of(self, chunk: int) -> Tensor:
        """The slot of a chunk, a view."""
        return self.buffer[self._offsets[chunk] : self._offsets[chunk + 1]]

    def take(self, chunk: int, data: Tensor, *, reduce: bool) -> None:
        """Receive a chunk: store it, or add it to what is there."""
        slot = self.of(chunk)
        if self._what.tells_only:
            torch.maximum(slot, data, out=slot)
        elif reduce and self.held[chunk]:
            slot.add_(data)
        else:
            slot.copy_(data)
        self.held[chunk] = True


def carry_out(what: Plan, dtype: str, player: int) -> Slots:
    """Play one player's part: real sends and receives, step by step, with the processes of the default group."""
    slots = Slots(what, dtype, player)
    sizes = what.sizes
    for number, step in enumerate(what.steps):
        sends, receives = _messages(step, step.src == player, step.dst), _messages(step, step.dst == player, step.src)
        works, inbox = [], {}
        for peer, chunks in sends.items():
            payload = torch.cat([slots.of(chunk) for chunk in chunks])
            if payload.numel():
                works.append((dist.isend(payload, peer, tag=number), payload))  # the payload lives until it has left
        for peer, chunks in receives.items():
            box = inbox[peer] = torch.empty(int(sizes[chunks].sum()), dtype=slots.buffer.dtype)
            if box.numel():
                works.append((dist.irecv(box, peer, tag=number), box))
        for work, _ in works:
            work.wait()
        parts = {peer: iter(box.split(sizes[receives[peer]].tolist())) for peer, box in inbox.items()}
        for entry in np.flatnonzero(step.dst == player).tolist():
            slots.take(int(step.chunk[entry]), next(parts[int(step.src[entry])]), reduce=step.reduce)
    return slots


def _messages(step: Step, mine: Any, others: Any) -> dict[int, list[int]]:
    """Chunks by peer, in the order of the entries: entries with the same ends are one message."""
    found: dict[int, list[int]] = {}
    for entry in np.flatnonzero(mine).tolist():
        found.setdefault(int(others[entry]), []).append(int(step.chunk[entry]))
    return found


def model(what: Plan, dtype: str) -> list[Slots]:
    """All players in one process, without messages."""
    slots = [Slots(what, dtype, player) for player in range(what.players)]
    for step in what.steps:
        entries = list(zip(step.src.tolist(), step.dst.tolist(), step.chunk.tolist(), strict=True))
        sent = [slots[src].of(chunk).clone() for src, _, chunk in entries]
        for (_, dst, chunk), data in zip(entries, sent, strict=True):
            slots[dst].take(chunk, data, reduce=step.reduce)
    return slots


def exact(what: Plan, dtype: str, chunk: int) -> tuple[Tensor, Tensor]:
    """The mathematical result for a chunk, and the sum of the contributions' magnitudes (both float64 or int64)."""
    wide = torch.int64 if dtype == "int64" or what.tells_only else torch.float64
    brought = [
        contribution(what, dtype, member, chunk).to(wide)
        for member in np.flatnonzero(what.before[: what.members, chunk]).tolist()
    ]
    stacked = torch.stack(brought)
    total = stacked.amax(0) if what.tells_only else stacked.sum(0)
    return total, stacked.abs().sum(0)


def by_gloo(what: Plan, dtype: str, player: int, group: Any) -> Slots | None:
    """The same collective by gloo itself, for a member: what it ends with, in slots. None where gloo has nothing to
    compare (a barrier, or a switch)."""
    if what.tells_only or player >= what.members:
        return None
    before, after = Slots(what, dtype, player), Slots(what, dtype, player)
    if what.collective in ("all_reduce", "reduce", "broadcast"):
        call = {
            "all_reduce": lambda: dist.all_reduce(after.buffer, group=group),
            "reduce": lambda: dist.reduce(after.buffer, what.root, group=group),
            "broadcast": lambda: dist.broadcast(after.buffer, what.root, group=group),
        }
        call[what.collective]()
    elif what.collective == "all_to_all":
        _all_to_all(what, before, after, player, group)
    elif what.collective != "send":
        _parts(what, before, after, player, group)
    elif what.members > 1:
        _ = dist.send(before.buffer, 1) if player == 0 else dist.recv(after.buffer, 0)
    return after


def _edges(what: Plan) -> list[int]:
    """Where the part of each member (of each pair of members) begins, and the end of the last."""
    edges: list[int] = what.offsets()[:: what.parts].tolist()
    return edges


def _all_to_all(what: Plan, before: Slots, after: Slots, me: int, group: Any) -> None:
    n, edges = what.members, _edges(what)
    table = np.diff(edges).reshape(n, n)
    mine = before.buffer[edges[me * n] : edges[(me + 1) * n]].clone()
    out = torch.empty(int(table[:, me].sum()), dtype=mine.dtype)
    dist.all_to_all_single(out, mine, table[:, me].tolist(), table[me].tolist(), group=group)
    for other, part in enumerate(out.split(table[:, me].tolist())):
        after.buffer[edges[other * n + me] : edges[other * n + me + 1]] = part


def _parts(what: Plan, before: Slots, after: Slots, me: int, group: Any) -> None:
    """Collectives of one part per member. gloo wants equal parts: all are padded to the widest."""
    edges, root = _edges(what), what.root
    widest = max(b - a for a, b in pairwise(edges))
    if widest == 0:
        return

    def padded(member: int) -> Tensor:
        filled = torch.zeros(widest, dtype=before.buffer.dtype)
        filled[: edges[member + 1] - edges[member]] = before.buffer[edges[member] : edges[member + 1]]
        return filled

    def keep(member: int, box: Tensor) -> None:
        after.buffer[edges[member] : edges[member + 1]] = box[: edges[member + 1] - edges[member]]

    everyone = range(what.members)
    boxes = [torch.empty(widest, dtype=before.buffer.dtype) for _ in everyone]
    if what.collective == "all_gather":
        dist.all_gather(boxes, padded(me), group=group)
    elif what.collective == "gather":
        dist.gather(padded(me), boxes if me == root else None, root, group=group)
    elif what.collective == "scatter":
        dist.scatter(boxes[me], [padded(m) for m in everyone] if me == root else None, root, group=group)
    else:
        dist.reduce_scatter_single(boxes[me], torch.cat([padded(m) for m in everyone]), group=group)
    for member in everyone if what.collective == "all_gather" or (what.collective, me) == ("gather", root) else (me,):
        keep(member, boxes[member])
