"""The quotient in closed form: regular meshes on regular fabrics, at a price that does not grow with the ranks.

Where all ranks of a program are placed alike, one communicator of each kind stands for all of them, and one
accelerator for all that run a program. Then nothing has to be listed rank by rank. That holds if

- ranks differ by program only, and programs by the coordinate on one axis (or not at all);
- groups are made of mesh axes, and messages go to mesh offsets;
- accelerators do not forward, and no traffic can fill a link that does not end at an accelerator (a Clos network
  without oversubscription);
- the communicators tried, spread over the mesh, put equal weights on their members' links and have equal latency.

Otherwise ``quotient`` says what is in the way, and the job is folded by colours (:mod:`.fold`), which needs none of it.
Tests compare the two where both run.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from emulator.network.bind import BoundPhase
from emulator.replay.fold import Quotient
from emulator.replay.kin import Kin
from emulator.replay.loads import carriers_on, loads_of
from emulator.replay.plans import GroupKind, Planner
from emulator.replay.tables import Tables
from emulator.replay.variants import Variants
from emulator.rows import offsets
from emulator.topology.graph import Topology
from emulator.trace.messages import Slot
from emulator.trace.schema import RanksByAxis, Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_TRIED = 16  # communicators of a kind that are compared at the most
_TRIED_MEMBERS = 1024  # fewer are compared where they are large, but two at least
_SAME = 1e-12


class DoesNotApplyError(Exception):
    """What keeps a job from having a closed form."""


def quotient(trace: Trace, variants: Variants, topology: Topology, planner: Planner) -> Quotient:
    """The quotient of a regular job. Raises DoesNotApplyError, with the reason, for any other."""
    _check_regular(trace, variants, topology)
    return _Build(trace, variants, topology, planner).quotient()


def _check_regular(trace: Trace, variants: Variants, topology: Topology) -> None:
    if len(variants.variants) != len({v.program for v in variants.variants}):
        raise DoesNotApplyError("ranks of one program have different numbers")
    if not isinstance(trace.ranks, RanksByAxis) and len({program for _, program in trace.ranks}) > 1:
        raise DoesNotApplyError("programs do not follow one mesh axis")
    if topology.forwards:
        raise DoesNotApplyError("accelerators forward traffic of others")
    if not topology.facts.nonblocking:
        raise DoesNotApplyError("traffic could fill links inside the fabric")
    if trace.world_size != topology.accelerators:
        raise DoesNotApplyError("the job does not fill the fabric")


class _Ports:
    """Links that end at an accelerator, by level and direction; worked out where asked, not for every link at once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.count = 2 * len(topology.level_names)
        self._out = topology.link_src < topology.accelerators
        self._into = topology.link_dst < topology.accelerators
        if (self._out & self._into).any():
            raise DoesNotApplyError("accelerators are cabled to each other")

    def number(self, link: Ints) -> Ints:
        """The port that a link is of its accelerator, 0 to ``count - 1``; -1 for all other links."""
        ends = self._out[link] | self._into[link]
        return np.where(ends, self._topology.link_level[link] * 2 + self._into[link], -1)

    def owner(self, link: Ints) -> Ints:
        """The accelerator at which these links end."""
        t = self._topology
        return np.where(self._out[link], t.link_src[link], t.link_dst[link])

    def of(self, accelerators: Ints) -> Ints:
        """The links that end at these accelerators."""
        t, theirs = self._topology, np.zeros(self._topology.nodes, dtype=np.bool_)
        theirs[accelerators] = True
        return np.flatnonzero(theirs[t.link_src] | theirs[t.link_dst])

    def differ(self, port: int) -> bool:
        """Are the accelerators' ports of this number of unequal capacity?"""
        level, into = divmod(port, 2)
        where = (self._topology.link_level == level) & (self._into if into else self._out)
        capacity = self._topology.capacity
        low, high = capacity.min(where=where, initial=np.inf), capacity.max(where=where, initial=0.0)
        return bool(high - low > _SAME * high)


class _Build:
    def __init__(self, trace: Trace, variants: Variants, topology: Topology, planner: Planner) -> None:
        self.trace = trace
        self.variants = variants
        self.topology = topology
        self.planner = planner
        self.ports = _Ports(topology)
        shape = trace.mesh.shape
        self.stride = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
        self.axis = trace.mesh.axes.index(trace.ranks.axis) if isinstance(trace.ranks, RanksByAxis) else None
        self.classes = len(variants.variants)
        self.ranks = [np.flatnonzero(variants.of_rank == v) for v in range(self.classes)]
        self.first_rank = np.array([ranks[0] for ranks in self.ranks], dtype=np.int64)
        self.kinds: list[GroupKind] = []
        self.need: list[int] = []
        self.group_of: dict[tuple[object, ...], int] = {}
        # group, phase, link classes, weights, lines, rate alone
        self.entries: list[tuple[int, int, Ints, Floats, Floats, float]] = []

    def quotient(self) -> Quotient:
        slots: list[int] = []
        ptr = [0]
        instances = 0
        for v, variant in enumerate(self.variants.variants):
            for slot in self.variants.items[variant.program].slots:
                key, members, count = self._collective(v, slot) if slot.kind == "collective" else self._pair(v, slot)
                if key not in self.group_of:
                    self.group_of[key] = len(self.kinds)
                    instances += count
                    self._plan(slot, members)
                self.need[self.group_of[key]] += 1
                slots.append(self.group_of[key])
            ptr.append(len(slots))
        return self._assemble(np.array(slots, dtype=np.int64), np.array(ptr, dtype=np.int64), instances)

    def _members(self, axes: list[int], rank: int) -> Ints:
        """The ranks that differ from ``rank`` on these axes only, in the order of the group."""
        base = rank
        for axis in axes:
            base -= rank // self.stride[axis] % self.trace.mesh.shape[axis] * self.stride[axis]
        members = np.array([base], dtype=np.int64)
        for axis in axes:
            steps = np.arange(self.trace.mesh.shape[axis], dtype=np.int64) * self.stride[axis]
            members = (members[:, None] + steps).ravel()
        return members

    def _collective(self, v: int, slot: Slot) -> tuple[tuple[object, ...], list[Ints], int]:
        names = self.trace.groups[slot.group].axes
        if names is None:
            raise DoesNotApplyError(f"group {slot.group!r} lists its ranks")
        axes = [self.trace.mesh.axes.index(name) for name in names]
        across = self.axis is not None and self.axis in axes
        key = ("collective", slot.group, -1 if across else v)
        size = int(np.prod([self.trace.mesh.shape[axis] for axis in axes], dtype=np.int64))
        tried = [self._members(axes, rank) for rank in self._tried_ranks(v, size)]
        count = self.trace.world_size // len(tried[0]) // (1 if across or self.axis is None else self.classes)
        return key, tried, count

    def _tried_ranks(self, v: int, size: int) -> list[int]:
        """Ranks of a class spread over the mesh: the first, the last, and some between."""
        ranks = self.ranks[v]
        count = min(_TRIED, max(2, _TRIED_MEMBERS // size))
        where = np.unique(np.linspace(0, len(ranks) - 1, count).round().astype(np.int64))
        return [int(rank) for rank in ranks[where]]

    def _pair(self, v: int, slot: Slot) -> tuple[tuple[object, ...], list[Ints], int]:
        if not isinstance(slot.peer, tuple):
            raise DoesNotApplyError("a message names its peer by rank")
        sign = 1 if slot.kind == "send" else -1
        offset = tuple(
            (axis, sign * step % self.trace.mesh.shape[self.trace.mesh.axes.index(axis)]) for axis, step in slot.peer
        )
        tried = []
        for rank in self._tried_ranks(v, 2):
            other = rank
            for axis, step in slot.peer:
                i = self.trace.mesh.axes.index(axis)
                here = rank // self.stride[i] % self.trace.mesh.shape[i]
                other += ((here + step) % self.trace.mesh.shape[i] - here) * self.stride[i]
            pair = [rank, other] if slot.kind == "send" else [other, rank]
            tried.append(np.array(pair, dtype=np.int64))
        source = int(self.variants.of_rank[tried[0][0]])
        key = ("pair", slot.group, slot.tag, offset, source)
        return key, tried, self.trace.world_size // (1 if self.axis is None else self.classes)

    def _plan(self, slot: Slot, tried: list[Ints]) -> None:
        leader = int(self.variants.of_rank[tried[0][0]])
        if slot.kind == "collective":
            slot_of, name = slot, slot.group
        else:
            slot_of, name = self._sender_slot(leader, slot), slot.group or "p2p"
        kind = GroupKind(name=name, size=len(tried[0]), instances=np.array([len(self.kinds)]))
        members = np.stack(list({(int(ranks[0]), int(ranks[-1])): ranks for ranks in tried}.values()))
        if self.planner.uneven(leader, slot_of):
            raise DoesNotApplyError("an all-to-all has uneven parts")
        self.planner.plan(kind, slot_of, members, leader)
        if np.ptp(kind.share):
            raise DoesNotApplyError("communicators of one kind slow what computes unequally")
        for phase, bound in kind.bound:
            self._add_phase(len(self.kinds), phase, bound)
        self.kinds.append(kind)
        self.need.append(0)

    def _sender_slot(self, variant: int, slot: Slot) -> Slot:
        """The slot under which the sender knows a pair."""
        if slot.kind == "send":
            return slot
        assert isinstance(slot.peer, tuple)
        shape, axes = self.trace.mesh.shape, self.trace.mesh.axes
        for other in self.variants.items[self.variants.variants[variant].program].slots:
            if other.kind == "send" and (other.group, other.tag) == (slot.group, slot.tag) and (
                isinstance(other.peer, tuple)
                and [(a, s % shape[axes.index(a)]) for a, s in other.peer]
                == [(a, -s % shape[axes.index(a)]) for a, s in slot.peer]
            ):  # fmt: skip
                return other
        raise DoesNotApplyError("sender and receiver name each other differently")

    def _add_phase(self, group: int, phase: int, bound: BoundPhase) -> None:
        """Compare the instances that were tried; what the first puts on its members' links stands for all."""
        first: tuple[Ints, Floats] | None = None
        lines = np.stack([bound.latency, bound.hidden])
        if (np.ptp(lines, axis=1) > _SAME * np.maximum(1e-24, lines.max(axis=1))).any():
            raise DoesNotApplyError("communicators of one kind differ in latency")
        for i in range(len(bound.latency)):
            link = bound.link[bound.ptr[i] : bound.ptr[i + 1]]
            weight = bound.weight[bound.ptr[i] : bound.ptr[i + 1]]
            port = self.ports.number(link)
            link, weight, port = link[port >= 0], weight[port >= 0], port[port >= 0]
            owner = self.variants.of_rank[self.ports.owner(link)]  # the job fills the fabric, rank r on accelerator r
            cell = owner * self.ports.count + port
            cells, which = np.unique(cell, return_inverse=True)
            low, high = np.full(len(cells), np.inf), np.zeros(len(cells))
            np.minimum.at(low, which.ravel(), weight)
            np.maximum.at(high, which.ravel(), weight)
            if (high - low > _SAME * high).any():
                raise DoesNotApplyError("members of a communicator use their links unequally")
            if first is None:
                first = (cells, high)
            elif not np.array_equal(first[0], cells) or (np.abs(first[1] - high) > _SAME * high).any():
                raise DoesNotApplyError("communicators of one kind use different links")
        assert first is not None
        self.entries.append((group, phase, *first, lines[:, 0], float(bound.rate_alone[0])))

    def _assemble(self, slots: Ints, slot_ptr: Ints, instances: int) -> Quotient:
        cells = np.unique(np.concatenate([np.empty(0, np.int64), *(entry[2] for entry in self.entries)]))
        link_of_class = np.empty(len(cells), dtype=np.int64)
        links_in_class = np.empty(len(cells), dtype=np.int64)
        theirs = self.ports.of(self.first_rank)
        numbers, owners = self.ports.number(theirs), self.ports.owner(theirs)
        for i, cell in enumerate(cells.tolist()):
            owner, port = divmod(cell, self.ports.count)
            mine = theirs[(numbers == port) & (owners == self.first_rank[owner])]
            link_of_class[i] = mine[0]
            links_in_class[i] = len(self.ranks[owner]) * len(mine)
        self._check_equal_capacity(cells)
        phases = np.array([kind.phases for kind in self.kinds] or [0], dtype=np.int64)[: len(self.kinds)]
        order = sorted(self.entries, key=lambda entry: entry[:2])
        weights = [entry[3] for entry in order]
        lines = np.zeros((2, len(order), max((entry[4].shape[1] for entry in order), default=1)))
        for row, entry in enumerate(order):
            lines[:, row, : entry[4].shape[1]] = entry[4]
        tables = Tables(
            variants=self.variants,
            kinds=self.kinds,
            node_variant=np.arange(self.classes, dtype=np.int64),
            node_name=[f"rank {rank}" for rank in self.first_rank.tolist()],
            node_slot_ptr=slot_ptr,
            node_slots=slots,
            group_kind=np.arange(len(self.kinds), dtype=np.int64),
            group_need=np.array(self.need, dtype=np.int64),
            group_share=np.array([kind.share[0] for kind in self.kinds], dtype=np.float64),
            phase_start=offsets(phases),
            phase_latency=lines[0],
            phase_hidden=lines[1],
            phase_rate=np.array([entry[5] for entry in order]),
            phase_ptr=offsets([len(entry[2]) for entry in order]),
            phase_link=np.concatenate([np.empty(0, np.int64), *(np.searchsorted(cells, e[2]) for e in order)]),
            phase_weight=np.concatenate([np.empty(0), *weights]),
            capacity=self.topology.capacity[link_of_class],
            link_events={},
        )
        return Quotient(
            tables=tables,
            node_class=self.variants.of_rank,
            groups=instances,
            rounds=0,
            method="closed form",
            kin=partial(Kin.of, tables),
            loads=lambda phase_bytes: loads_of(tables, phase_bytes, links_in_class, link_of_class),
            carriers=lambda link: carriers_on(tables, int(np.flatnonzero(link_of_class == link)[0])),
        )

    def _check_equal_capacity(self, cells: Ints) -> None:
        for port in np.unique(cells % self.ports.count).tolist():
            if self.ports.differ(port):
                raise DoesNotApplyError("links of one level differ in capacity")
