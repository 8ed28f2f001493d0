"""The flat tables that the engine runs: who there is, which groups they meet in, what each group puts on which link.

Full and folded runs differ only in their tables. Everything is a numpy array in compressed rows; there is no object
per rank or per group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from emulator.replay.groups import Groups
from emulator.replay.plans import GroupKind
from emulator.replay.variants import Variants
from emulator.rows import offsets, owners
from emulator.topology.graph import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tables:
    """Nodes (ranks or classes of ranks), groups and links.

    ``node_variant``: variant of each node; ``node_slots[node_slot_ptr[i]:node_slot_ptr[i+1]]``: the group behind each
    slot of its program. ``group_kind`` indexes ``kinds``; ``group_need``: arrivals a group waits for;
    ``group_share``: the part of the chip that its kernels take from what computes. Group g owns the phase rows
    ``phase_start[g]:phase_start[g+1]``; phase row p puts ``phase_weight[k]`` on link ``phase_link[k]`` for k in
    ``phase_ptr[p]:phase_ptr[p+1]``, after the seconds that ``phase_latency[p]`` and ``phase_hidden[p]`` (f64[p, J])
    make for its bytes (:class:`emulator.network.bind.BoundPhase`); alone its largest flow has ``phase_rate[p]``
    bytes/s. ``capacity`` in bytes/s; ``link_events``: (time, capacity from then on) of links that change.
    """

    variants: Variants
    kinds: list[GroupKind]
    node_variant: Ints
    node_name: list[str]
    node_slot_ptr: Ints
    node_slots: Ints
    group_kind: Ints
    group_need: Ints
    group_share: Floats
    phase_start: Ints
    phase_latency: Floats
    phase_hidden: Floats
    phase_rate: Floats
    phase_ptr: Ints
    phase_link: Ints
    phase_weight: Floats
    capacity: Floats
    link_events: dict[int, tuple[tuple[float, float], ...]]

    @cached_property
    def row_of_entry(self) -> Ints:
        """The phase row of every entry of ``phase_link``."""
        return owners(self.phase_ptr)

    @cached_property
    def group_of_row(self) -> Ints:
        """The group of every phase row."""
        return owners(self.phase_start)

    def alone_seconds(self, group: int, phases: Iterable[tuple[int, float]]) -> float:
        """Seconds that a group takes for phases (number, bytes) in sequence on the idle network."""
        total = 0.0
        for phase, size in phases:
            row = int(self.phase_start[group]) + phase
            wait = wait_for(self.phase_latency[row].tolist(), self.phase_hidden[row].tolist(), size)
            total += wait + size / float(self.phase_rate[row])
        return total


def wait_for(latency: Sequence[float], hidden: Sequence[float], size: float) -> float:
    """Seconds before the first of ``size`` bytes of one phase row (:meth:`emulator.network.bind.BoundPhase.wait`)."""
    return max(seconds - saved * size for seconds, saved in zip(latency, hidden, strict=True))


def build_tables(
    variants: Variants,
    groups: Groups,
    topology: Topology,
    link_events: dict[int, tuple[tuple[float, float], ...]] | None = None,
) -> Tables:
    """The tables of all ranks, unfolded."""
    world = len(variants.of_rank)
    count = len(groups.kind)
    phases_of_kind = np.array([kind.phases for kind in groups.kinds] or [0], dtype=np.int64)
    phase_start = offsets(phases_of_kind[groups.kind])
    total = int(phase_start[-1])
    lines = max((bound.latency.shape[1] for kind in groups.kinds for _, bound in kind.bound), default=1)
    latency, hidden = np.zeros((2, total, lines))
    rate = np.full(total, np.inf)
    share = np.zeros(count)
    entry_row: list[Ints] = [np.empty(0, dtype=np.int64)]
    entry_link: list[Ints] = [np.empty(0, dtype=np.int64)]
    entry_weight: list[Floats] = [np.empty(0)]
    for kind in groups.kinds:
        share[kind.instances] = kind.share
        for phase, bound in kind.bound:
            rows = phase_start[kind.instances] + phase
            latency[rows, : bound.latency.shape[1]] = bound.latency
            hidden[rows, : bound.latency.shape[1]] = bound.hidden
            rate[rows] = bound.rate_alone
            entry_row.append(np.repeat(rows, np.diff(bound.ptr)))
            entry_link.append(bound.link)
            entry_weight.append(bound.weight)
    row, link = np.concatenate(entry_row), np.concatenate(entry_link)
    weight = np.concatenate(entry_weight)
    order = np.argsort(row, kind="stable")
    return Tables(
        variants=variants,
        kinds=groups.kinds,
        node_variant=variants.of_rank,
        node_name=[f"rank {rank}" for rank in range(world)],
        node_slot_ptr=groups.slot_ptr,
        node_slots=groups.slots,
        group_kind=groups.kind,
        group_need=np.bincount(groups.slots, minlength=count),
        group_share=share,
        phase_start=phase_start,
        phase_latency=latency,
        phase_hidden=hidden,
        phase_rate=rate,
        phase_ptr=offsets(np.bincount(row, minlength=total)),
        phase_link=link[order],
        phase_weight=weight[order],
        capacity=topology.capacity,
        link_events=link_events or {},
    )
