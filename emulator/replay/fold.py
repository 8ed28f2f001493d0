"""Folding: ranks, groups and links that must behave alike become one class each; the engine runs the classes.

Colour refinement finds the coarsest partition in which every member of a class sees the same colours around it. On
such an *equitable* partition the quotient obeys the very equations of the whole, so folded and whole runs agree
exactly, not approximately (docs/model.md has the argument; for linear programs see Grohe, Kersting, Mladenov,
Selman, "Dimension Reduction via Colour Refinement", ESA 2014). Colours are 64-bit hashes; hashes are not proof, so
the final partition is checked for equitability before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from emulator.network.fluid import Route
from emulator.replay.kin import Kin
from emulator.replay.loads import Carriers, Loads, carriers_on, loads_of
from emulator.replay.tables import Tables
from emulator.rows import offsets, owners
from emulator.topology.hashing import mix

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]
# Equal weights reached by different orders of addition differ in the last bits; labels compare 12 digits.
_DIGITS = 12


@dataclass(frozen=True)
class Quotient:
    """Tables that the engine runs in place of all ranks.

    ``node_class`` i64[world] is the node that stands for each rank, ``groups`` how many groups there are in all,
    ``method`` how the classes were found. ``kin`` tells who shares links with whom, given the route of every phase row;
    ``loads`` what links carried from the bytes of the phase rows, ``carriers`` what is routed over a link of the
    topology.
    """

    tables: Tables
    node_class: Ints
    groups: int
    rounds: int
    method: str
    kin: Callable[[Sequence[Route]], Kin]
    loads: Callable[[Floats], Loads]
    carriers: Callable[[int], Carriers]


@dataclass(frozen=True)
class Fold:
    """Class of every rank, group and link, and the tables of the classes."""

    node_class: Ints
    group_class: Ints
    link_class: Ints
    rounds: int
    tables: Tables

    def phase_bytes(self, full: Tables, of_class: Floats) -> Floats:
        """Bytes of every phase row of the full tables, from those of the classes."""
        group = full.group_of_row
        phase = np.arange(len(group)) - full.phase_start[:-1][group]
        rows = self.tables.phase_start[:-1][self.group_class[group]] + phase
        return np.asarray(of_class[rows], dtype=np.float64)


def coloured(full: Tables, reduced: Tables) -> Quotient:
    """The quotient by colours. ``reduced`` are the full tables without what cannot bind; loads are of all links."""
    folded = fold(reduced)

    def loads(of_class: Floats) -> Loads:
        return loads_of(full, folded.phase_bytes(full, of_class))

    def carriers(link: int) -> Carriers:
        found = carriers_on(full, link)
        return replace(found, group=folded.group_class[found.group])

    return Quotient(
        tables=folded.tables,
        node_class=folded.node_class,
        groups=len(full.group_kind),
        rounds=folded.rounds,
        method="colour refinement",
        kin=partial(Kin, folded.tables, reduced, folded.group_class, folded.link_class),
        loads=loads,
        carriers=carriers,
    )


def whole(full: Tables, reduced: Tables) -> Quotient:
    """No folding: every rank is its own class, the tables run as they are."""
    ranks = np.arange(len(full.node_variant))
    return Quotient(
        tables=reduced,
        node_class=ranks,
        groups=len(full.group_kind),
        rounds=0,
        method="none",
        kin=partial(Kin.of, reduced),
        loads=lambda phase_bytes: loads_of(full, phase_bytes),
        carriers=lambda link: carriers_on(full, link),
    )


def fold(tables: Tables) -> Fold:
    """Fold tables. If the check of the final partition fails (a hash collision), nothing is folded."""
    nodes, groups, links, rounds = _refine(tables)
    if not _equitable(tables, nodes, groups, links):
        nodes = np.arange(len(tables.node_variant))
        groups = np.arange(len(tables.group_kind))
        links = np.arange(len(tables.capacity))
    nodes, groups, links = (_by_first_member(classes) for classes in (nodes, groups, links))
    return Fold(nodes, groups, links, rounds, _quotient(tables, nodes, groups, links))


def _pair(a: Ints, b: Ints) -> Ints:
    """One number for each pair."""
    return a * (int(b.max(initial=0)) + 1) + b


def _ranked(*columns: NDArray[np.generic]) -> Ints:
    """Rows of equal content get equal numbers 0, 1, 2, ..."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, codes = np.unique(column, return_inverse=True)
        pair = number * (int(codes.max(initial=0)) + 1) + codes.ravel()
        _, number = np.unique(pair, return_inverse=True)
        number = number.ravel()
    return number


def _signif(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``x`` rounded to 12 significant digits."""
    scale = np.zeros_like(x)
    nonzero = x != 0
    scale[nonzero] = _DIGITS - 1 - np.floor(np.log10(np.abs(x[nonzero])))
    power = 10.0**scale
    return np.asarray(np.round(x * power) / power)


@dataclass(frozen=True)
class _Edges:
    """Edges sorted by both ends, so that a sum over neighbours is one reduceat."""

    left: Ints
    right: Ints
    label: Hashes
    by_right: Ints

    @staticmethod
    def of(left: Ints, right: Ints, label: Hashes) -> _Edges:
        """``left`` has to be sorted."""
        with np.errstate(over="ignore"):
            return _Edges(left, right, mix(label), np.argsort(right, kind="stable"))

    def gather(self, colour: Hashes, size: int, to_right: bool) -> Hashes:
        """Per receiving vertex the sum of hash(colour of the neighbour, label) over its edges."""
        senders, receivers = (self.left, self.right) if to_right else (self.right, self.left)
        terms = mix(colour[senders] ^ self.label)
        if to_right:
            terms, receivers = terms[self.by_right], receivers[self.by_right]
        out = np.zeros(size, dtype=np.uint64)
        if len(terms):
            starts = np.flatnonzero(np.concatenate([[True], receivers[1:] != receivers[:-1]]))
            out[receivers[starts]] = np.add.reduceat(terms, starts)
        return out


def _slot_of_entry(tables: Tables) -> tuple[Ints, Ints]:
    """For every entry of the rank-to-group table: its rank and its slot number."""
    node = owners(tables.node_slot_ptr)
    return node, np.arange(len(node)) - tables.node_slot_ptr[:-1][node]


def _group_phase_of_entry(tables: Tables) -> tuple[Ints, Ints]:
    """For every entry of the group-to-link table: its group and its phase there."""
    group = tables.group_of_row[tables.row_of_entry]
    return group, tables.row_of_entry - tables.phase_start[:-1][group]


def _latency_colour(tables: Tables) -> Ints:
    """Groups with equal latencies in all phases, for any number of bytes, get equal numbers."""
    colour = np.zeros(len(tables.group_kind), dtype=np.int64)
    counts = np.diff(tables.phase_start)
    columns = [_signif(column) for column in (*tables.phase_latency.T, *tables.phase_hidden.T)]
    for phase in range(int(counts.max(initial=0))):
        has = counts > phase
        rows = tables.phase_start[:-1][has] + phase
        for values in columns:
            column = np.full(len(colour), -1.0)
            column[has] = values[rows]
            colour = _ranked(colour, column)
    return colour


def _event_colour(tables: Tables) -> Ints:
    """Links with equal capacity changes get equal numbers; 0: none."""
    colour = np.zeros(len(tables.capacity), dtype=np.int64)
    known: dict[tuple[tuple[float, float], ...], int] = {}
    for link, events in tables.link_events.items():
        colour[link] = known.setdefault(events, len(known) + 1)
    return colour


def _refine(tables: Tables) -> tuple[Ints, Ints, Ints, int]:
    node, slot = _slot_of_entry(tables)
    members = _Edges.of(node, tables.node_slots, _pair(tables.node_variant[node], slot).astype(np.uint64))
    group, phase = _group_phase_of_entry(tables)
    with np.errstate(over="ignore"):
        carrying = mix(_pair(tables.group_kind[group], phase).astype(np.uint64))
    carried = _Edges.of(group, tables.phase_link, carrying ^ _signif(tables.phase_weight).view(np.uint64))
    nodes = _ranked(tables.node_variant)
    groups = _ranked(tables.group_kind, tables.group_need, _signif(tables.group_share), _latency_colour(tables))
    links = _ranked(_signif(tables.capacity), _event_colour(tables))
    counts = (-1, -1, -1)
    rounds = 0
    with np.errstate(over="ignore"):
        while True:
            found = tuple(int(c.max(initial=-1)) + 1 for c in (nodes, groups, links))
            if found == counts:
                return nodes, groups, links, rounds
            counts = (found[0], found[1], found[2])
            rounds += 1
            a, b, c = (mix(colour.astype(np.uint64) * np.uint64(4) + np.uint64(i)) for i, colour in
                       enumerate((nodes, groups, links)))  # fmt: skip
            nodes = _ranked(mix(a) + members.gather(b, len(a), to_right=False))
            groups = _ranked(
                mix(mix(b) + members.gather(a, len(b), to_right=True)) + carried.gather(c, len(b), to_right=False)
            )
            links = _ranked(mix(c) + carried.gather(b, len(c), to_right=True))


def _equitable(tables: Tables, nodes: Ints, groups: Ints, links: Ints) -> bool:
    """Does every member of a class see the same classes, through the same labels, with the same total weight?"""
    node, slot = _slot_of_entry(tables)
    slot_class = _pair(nodes[node], slot)
    seen = np.full(int(slot_class.max(initial=-1)) + 1, -1, dtype=np.int64)
    seen[slot_class] = groups[tables.node_slots]
    if not np.array_equal(seen[slot_class], groups[tables.node_slots]):  # one slot, two classes of groups
        return False
    if not _even(groups, tables.node_slots, slot_class, np.ones(len(node))):
        return False
    group, phase = _group_phase_of_entry(tables)
    return _even(links, tables.phase_link, _pair(groups[group], phase), tables.phase_weight) and _even(
        groups, group, _pair(links[tables.phase_link], phase), tables.phase_weight
    )


def _even(classes: Ints, owner: Ints, label: Ints, weight: NDArray[np.float64]) -> bool:
    """All owners of one class have the same total weight for each label."""
    if not len(owner):
        return True
    labels = int(label.max()) + 1
    pair, inverse = np.unique(owner * labels + label, return_inverse=True)
    total = np.bincount(inverse.ravel(), weight)
    kind = classes[pair // labels] * labels + pair % labels
    kinds, inverse = np.unique(kind, return_inverse=True)
    inverse = inverse.ravel()
    size = np.bincount(classes)
    if not np.array_equal(np.bincount(inverse), size[kinds // labels]):
        return False
    low = np.full(len(kinds), np.inf)
    high = np.zeros(len(kinds))
    np.minimum.at(low, inverse, total)
    np.maximum.at(high, inverse, total)
    return bool((high - low <= 1e-9 * high).all())


def _by_first_member(classes: Ints) -> Ints:
    """Number the classes in the order of their first members, so that class 0 holds rank 0."""
    _, first, which = np.unique(classes, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[which.ravel()]


def _representatives(classes: Ints) -> Ints:
    _, first = np.unique(classes, return_index=True)
    return first.astype(np.int64)


def _quotient(tables: Tables, nodes: Ints, groups: Ints, links: Ints) -> Tables:
    """Tables of the classes: one node per class, and on each link class what its representative carries of each
    group class."""
    node_rep, group_rep, link_rep = (_representatives(c) for c in (nodes, groups, links))
    slot_counts = np.diff(tables.node_slot_ptr)[node_rep]
    node_slot_ptr = offsets(slot_counts)
    entries = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(tables.node_slot_ptr[r], tables.node_slot_ptr[r + 1]) for r in node_rep)]
    )
    node_slots = groups[tables.node_slots[entries]]
    phases = np.diff(tables.phase_start)[group_rep]
    phase_start = offsets(phases)
    phase_rows = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(tables.phase_start[g], tables.phase_start[g + 1]) for g in group_rep)]
    )
    is_rep = np.zeros(len(tables.capacity), dtype=bool)
    is_rep[link_rep] = True
    group, phase = _group_phase_of_entry(tables)
    keep = is_rep[tables.phase_link]
    row = phase_start[groups[group[keep]]] + phase[keep]
    count = len(link_rep)
    pair, inverse = np.unique(row * count + links[tables.phase_link[keep]], return_inverse=True)
    weight = np.bincount(inverse.ravel(), tables.phase_weight[keep], minlength=len(pair)).astype(np.float64)
    phase_ptr = offsets(np.bincount(pair // max(count, 1), minlength=len(phase_rows)))
    return replace(
        tables,
        node_variant=tables.node_variant[node_rep],
        node_slot_ptr=node_slot_ptr,
        node_slots=node_slots,
        group_kind=tables.group_kind[group_rep],
        group_need=np.bincount(node_slots, minlength=len(group_rep)),
        group_share=tables.group_share[group_rep],
        phase_start=phase_start,
        phase_latency=tables.phase_latency[phase_rows],
        phase_hidden=tables.phase_hidden[phase_rows],
        phase_rate=tables.phase_rate[phase_rows],
        phase_ptr=phase_ptr,
        phase_link=pair % max(count, 1),
        phase_weight=weight,
        capacity=tables.capacity[link_rep],
        link_events={
            i: tables.link_events[link] for i, link in enumerate(link_rep.tolist()) if link in tables.link_events
        },
        node_name=[tables.node_name[r] for r in node_rep.tolist()],
    )
