"""Two-level algorithms: inside the servers first (or last), across them with one shard per member.

With g members in each of k domains (``reference``: ml-engineering's two-level all-reduce), an all-reduce takes
``2(g-1)a1 + 2(g-1)/g S/B1 + 2(k-1)a2 + 2(k-1)/k (S/g)/B2``. All parts are rings; the k rings inside run side by side,
and so do the g rings across, each on its own network card where there is one per member.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.errors import InputError
from emulator.network.collectives.phase import Phase
from emulator.network.collectives.ring import pass_around, ring_phase
from emulator.network.collectives.schedule import Case, Step
from emulator.network.maxmin import Ints


def _table(case: Case) -> Ints:
    if case.table is None or not case.two_levels:
        raise InputError("hierarchical needs several servers with the same number of members, more than one, in each")
    return case.table


def _inside(table: Ints, *, reduce: bool) -> Iterator[Step]:
    """Rings within domains; place l has (or gets) the chunks of all members at place l of their domain."""
    domains, places = table.shape
    yield from pass_around(table, np.broadcast_to(table.T, (domains, places, domains)), reduce=reduce)


def _across(table: Ints, *, reduce: bool) -> Iterator[Step]:
    """Rings of the members at the same place of all domains; each has (or gets) its own chunk."""
    yield from pass_around(table.T, table.T[:, :, np.newaxis], reduce=reduce)


def all_gather(case: Case) -> Iterator[Step]:
    """Across, then inside."""
    table = _table(case)
    yield from _across(table, reduce=False)
    yield from _inside(table, reduce=False)


def reduce_scatter(case: Case) -> Iterator[Step]:
    """Inside, then across."""
    table = _table(case)
    yield from _inside(table, reduce=True)
    yield from _across(table, reduce=True)


def all_reduce(case: Case) -> Iterator[Step]:
    """Reduce-scatter inside, all-reduce across, all-gather inside."""
    yield from reduce_scatter(case)
    yield from all_gather(case)


def _phases(case: Case, rounds: int) -> tuple[tuple[Phase, ...], tuple[Phase, ...]]:
    table = _table(case)
    domains, places = table.shape
    inside = ring_phase(table, (places - 1) / places)
    across = ring_phase(table.T, rounds * (domains - 1) / case.n, rounds=rounds)
    return inside, across


def all_gather_phases(case: Case) -> tuple[Phase, ...]:
    """One ring phase across, one inside."""
    inside, across = _phases(case, 1)
    return across + inside


def reduce_scatter_phases(case: Case) -> tuple[Phase, ...]:
    """One ring phase inside, one across."""
    inside, across = _phases(case, 1)
    return inside + across


def all_reduce_phases(case: Case) -> tuple[Phase, ...]:
    """Ring phases inside, across (twice around), inside."""
    inside, across = _phases(case, 2)
    return inside + across + inside
