"""All-to-all in two hops: across servers between members at the same place, then inside the server (DeepEP's dispatch).

Every card talks to its own rail only, and data that several members of a server want crosses the network once
(``copies`` of them on average): bytes per card ``(k-1)/k S / copies``, bytes inside ``(g-1)/g S``, both hops in a
pipeline: ``a1 + a2`` latency and the slower of the two. ``combine`` is the way back: inside first, where what goes to
the same member is added up, then across.

The steps move every copy by itself, so for ``copies`` above 1 they move more bytes than the phase.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.errors import InputError
from emulator.network.collectives.phase import Phase
from emulator.network.collectives.schedule import Case, Step, in_pieces, pair_chunks
from emulator.network.maxmin import Floats, Ints

PIECES = 16  # of each pair's data in the steps; the phase is the limit of thin pieces


def _table(case: Case) -> Ints:
    if case.table is None or not case.two_levels:
        raise InputError("two_hop needs several servers with the same number of members, more than one, in each")
    return case.table


def chunks(case: Case) -> Floats:
    """What each member has for each, in pieces."""
    return np.repeat(pair_chunks(case) / PIECES, PIECES)


def _steps(case: Case, *, across_first: bool) -> Iterator[Step]:
    table, sent = _table(case), pair_chunks(case)
    server, place = np.empty(case.n, dtype=np.int64), np.empty(case.n, dtype=np.int64)
    server[table], place[table] = np.indices(table.shape)
    edges = []
    for pair in np.flatnonzero(sent > 0).tolist():
        src, dst = divmod(pair, case.n)
        between = int(table[server[dst], place[src]] if across_first else table[server[src], place[dst]])
        hops = [(a, b) for a, b in ((src, between), (between, dst)) if a != b]
        edges += [(hop, a, b, pair * PIECES, False, 0) for hop, (a, b) in enumerate(hops)]
    yield from in_pieces(edges, PIECES)


def dispatch(case: Case) -> Iterator[Step]:
    """Across, then inside."""
    yield from _steps(case, across_first=True)


def combine(case: Case) -> Iterator[Step]:
    """Inside, then across."""
    yield from _steps(case, across_first=False)


def _flows(table: Ints) -> tuple[Ints, Ints]:
    """All ordered pairs of different entries in each row."""
    width = table.shape[1]
    a, b = (index.ravel() for index in np.indices((width, width)))
    return table[:, a[a != b]].ravel(), table[:, b[a != b]].ravel()


def _hop(table: Ints, amount: Floats | None, even: float) -> tuple[Ints, Ints, Floats]:
    src, dst = _flows(table)
    return src, dst, np.full(len(src), even) if amount is None else amount[src, dst]


def _summed(case: Case, table: Ints, *, across_first: bool) -> tuple[Floats | None, Floats | None]:
    """f64[n, n]: what goes across and what inside, summed from the splits."""
    if case.splits is None:
        return None, None
    largest = max(float(case.splits.sum(axis=1).max()), 1e-300)
    part = (case.splits / largest)[table[:, :, None, None], table]  # [server, place, server, place]
    kept, gone = (3, 0) if across_first else (1, 2)
    across, inside = np.zeros((case.n, case.n)), np.zeros((case.n, case.n))
    by_rail = part.sum(axis=kept)  # [server, place, server] or [server, server, place]
    by_rail = by_rail if across_first else by_rail.transpose(0, 2, 1)
    across[table[:, :, None], table.T[None]] = by_rail
    within = part.sum(axis=gone)  # [place, server, place] or [server, place, place]
    within = within.transpose(1, 0, 2) if across_first else within
    inside[table[:, :, None], table[:, None, :]] = within
    return across, inside


def _phases(case: Case, *, across_first: bool) -> tuple[Phase, ...]:
    table = _table(case)
    servers, places = table.shape
    across, inside = _summed(case, table, across_first=across_first)
    a = _hop(table.T, across, places / case.n)
    b = _hop(table, inside, servers / case.n)
    a = (*a[:2], a[2] / case.copies)
    src, dst, fraction = (np.concatenate(column) for column in zip(a, b, strict=True))
    first, second = np.arange(len(a[0])), len(a[0]) + np.arange(len(b[0]))
    return (Phase(src, dst, fraction, chains=(first[:, np.newaxis], second[:, np.newaxis])),)


def dispatch_phases(case: Case) -> tuple[Phase, ...]:
    """Both hops as one phase."""
    return _phases(case, across_first=True)


def combine_phases(case: Case) -> tuple[Phase, ...]:
    """Both hops as one phase."""
    return _phases(case, across_first=False)
