"""Binomial trees, ``log2(n) (a + S/B)``, and the dissemination barrier, ``log2(n) a`` (Thakur et al. 2005).

Distances halve on the way from the root, so that a group listed server by server crosses between servers first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.network.collectives.schedule import Case, Step


def _distances(n: int) -> list[int]:
    """Powers of two below n, largest first."""
    return [1 << k for k in reversed(range((n - 1).bit_length()))]


def broadcast(case: Case) -> Iterator[Step]:
    """Who has the buffer sends it on, to ever nearer members."""
    place = case.order_from_root
    for distance in _distances(case.n):
        has = np.arange(0, case.n - distance, 2 * distance)
        yield Step(place[has], place[has + distance], np.zeros(len(has), dtype=np.int64))


def reduce(case: Case) -> Iterator[Step]:
    """The broadcast backwards, adding."""
    place = case.order_from_root
    for distance in reversed(_distances(case.n)):
        has = np.arange(0, case.n - distance, 2 * distance)
        yield Step(place[has + distance], place[has], np.zeros(len(has), dtype=np.int64), reduce=True)


def barrier(case: Case) -> Iterator[Step]:
    """In step k everyone tells the member 2^k places on; after the last step everyone has heard of all."""
    src = np.arange(case.n)
    for distance in reversed(_distances(case.n)):
        yield Step(src, (src + distance) % case.n, np.zeros(case.n, dtype=np.int64))
