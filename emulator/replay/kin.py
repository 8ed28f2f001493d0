"""Who shares links with whom: kin are groups with a rank in common, strangers the others.

For a rank kin are its own other streams: another communicator that it (or another member of the communicator that is
slowed) belongs to, or another message of the same communicator. In a folded run the first group of a class speaks for
all of them: its real links, and the real groups on those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from emulator.network.routes import Route
from emulator.network.sharing import Place
from emulator.replay.tables import Tables
from emulator.rows import by_value

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Kin:
    """The links and groups behind the tables that the engine runs (a ``network.sharing.Sharers``).

    ``real`` are the tables of all ranks, ``group_class`` and ``link_class`` the group and the link of ``run`` that
    stand for each of theirs; ``routes``: the route of each phase row of ``run``.
    """

    run: Tables
    real: Tables
    group_class: Ints
    link_class: Ints
    routes: Sequence[Route]
    _known: dict[tuple[int, int], tuple[Place, ...]] = field(default_factory=dict)
    _kin: dict[int, Mask] = field(default_factory=dict)

    @staticmethod
    def of(tables: Tables, routes: Sequence[Route]) -> Kin:
        """Of tables that stand for themselves."""
        return Kin(tables, tables, np.arange(len(tables.group_kind)), np.arange(len(tables.capacity)), routes)

    def places(self, route: Route, link: int) -> Sequence[Place]:
        """The real links that the first group behind a route uses behind a link of the tables that are run."""
        key = (route.index, link)
        if key not in self._known:
            self._known[key] = tuple(self._places(*self._first_row[route.index], link))
        return self._known[key]

    def _places(self, group: int, row: int, link: int) -> list[Place]:
        entries = slice(int(self.real.phase_ptr[row]), int(self.real.phase_ptr[row + 1]))
        mine = self.link_class[self.real.phase_link[entries]] == link
        links, weights = self.real.phase_link[entries][mine], self.real.phase_weight[entries][mine]
        kin = self._kin_of(group)
        return [
            Place(weight, self._on(real_link, kin))
            for real_link, weight in zip(links.tolist(), weights.tolist(), strict=True)
        ]

    def _on(self, real_link: int, kin: Mask) -> tuple[tuple[int, float], ...]:
        """Routes of kin on a real link with their weights there."""
        ptr, entries = self._entries_on
        entries = entries[ptr[real_link] : ptr[real_link + 1]]
        entries = entries[kin[self._group_of_entry[entries]]]
        groups, rows = self._group_of_entry[entries], self.real.row_of_entry[entries]
        classes = self.group_class[groups]
        run_rows = self.run.phase_start[classes] + rows - self.real.phase_start[groups]
        weight_of = {  # phases of a group may share a route
            (group, self.routes[run_row].index): weight
            for group, run_row, weight in zip(
                groups.tolist(), run_rows.tolist(), self.real.phase_weight[entries].tolist(), strict=True
            )
        }
        total: dict[int, float] = {}
        for (_, route), weight in weight_of.items():
            total[route] = total.get(route, 0.0) + weight
        return tuple(total.items())

    def _kin_of(self, group: int) -> Mask:
        """Which groups have a rank in common with a group, itself among them."""
        if group not in self._kin:
            mask = np.zeros(len(self.real.group_kind), dtype=bool)
            mask[group] = True
            ptr, entries = self._slots_of
            for entry in entries[ptr[group] : ptr[group + 1]].tolist():
                node = int(np.searchsorted(self.real.node_slot_ptr, entry, side="right")) - 1
                mask[self.real.node_slots[self.real.node_slot_ptr[node] : self.real.node_slot_ptr[node + 1]]] = True
            self._kin[group] = mask
        return self._kin[group]

    @cached_property
    def _first_row(self) -> dict[int, tuple[int, int]]:
        """Of every route the first real group behind it, and that group's row."""
        first_of_class = _first(self.group_class, len(self.run.group_kind))
        found: dict[int, tuple[int, int]] = {}
        for run_row, route in enumerate(self.routes):
            if route.index not in found:
                run_group = int(self.run.group_of_row[run_row])
                group = int(first_of_class[run_group])
                row = int(self.real.phase_start[group] + run_row - self.run.phase_start[run_group])
                found[route.index] = (group, row)
        return found

    @cached_property
    def _group_of_entry(self) -> Ints:
        return self.real.group_of_row[self.real.row_of_entry]

    @cached_property
    def _entries_on(self) -> tuple[Ints, Ints]:
        """The entries of each link."""
        return by_value(self.real.phase_link, len(self.real.capacity))

    @cached_property
    def _slots_of(self) -> tuple[Ints, Ints]:
        """The slots of nodes behind which each group is."""
        return by_value(self.real.node_slots, len(self.real.group_kind))


def _first(classes: Ints, count: int) -> Ints:
    """The first member of every class."""
    _, first = np.unique(classes, return_index=True)
    assert len(first) == count
    return first
