"""Direct algorithms: everyone sends to everyone (or to the root) at once.

On a switch or a full mesh ``a + (n-1)/n S/B`` per exchange; an all-reduce is two exchanges. Here too: point-to-point
send, and the pairwise exchange, which takes the peers of an all-to-all one after the other, ``(n-1)(a + S/(nB))``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.errors import InputError
from emulator.network.collectives.phase import AllPairs, AnyPhase, pairs, phases_of
from emulator.network.collectives.schedule import Case, Step, member_chunks, pair_chunks
from emulator.network.maxmin import Ints


def all_gather(case: Case) -> Iterator[Step]:
    """Every member sends its chunk to all others."""
    if case.n > 1:
        src, dst = pairs(case.n)
        yield Step(src, dst, src)


def reduce_scatter(case: Case) -> Iterator[Step]:
    """Every member sends each other member that one's chunk; the receiver adds, senders in group order."""
    if case.n > 1:
        src, dst = pairs(case.n)
        yield Step(src, dst, dst, reduce=True)


def all_reduce(case: Case) -> Iterator[Step]:
    """Reduce-scatter, then all-gather."""
    yield from reduce_scatter(case)
    yield from all_gather(case)


def all_to_all(case: Case) -> Iterator[Step]:
    """Every member sends every other its part; parts without bytes are not sent."""
    if case.n > 1:
        src, dst = pairs(case.n)
        chunk = src * case.n + dst
        sent = pair_chunks(case)[chunk] > 0
        if sent.any():
            yield Step(src[sent], dst[sent], chunk[sent])


def all_gather_phases(case: Case) -> tuple[AnyPhase, ...]:
    """One exchange."""
    if case.splits is None:
        return (AllPairs(case.n, 1 / case.n),)
    return phases_of(all_gather(case), case.n, member_chunks(case))


def reduce_scatter_phases(case: Case) -> tuple[AnyPhase, ...]:
    """One exchange."""
    if case.splits is None:
        return (AllPairs(case.n, 1 / case.n),)
    return phases_of(reduce_scatter(case), case.n, member_chunks(case))


def all_reduce_phases(case: Case) -> tuple[AnyPhase, ...]:
    """Two exchanges."""
    return (AllPairs(case.n, 1 / case.n),) * 2


def all_to_all_phases(case: Case) -> tuple[AnyPhase, ...]:
    """One exchange."""
    if case.splits is None:
        return (AllPairs(case.n, 1 / case.n),)
    return phases_of(all_to_all(case), case.n, pair_chunks(case))


def pairwise_all_to_all(case: Case) -> Iterator[Step]:
    """In step s every member sends to the one s places on."""
    chunks, src = pair_chunks(case), np.arange(case.n)
    for distance in range(1, case.n):
        dst = (src + distance) % case.n
        sent = chunks[src * case.n + dst] > 0
        if sent.any():
            yield Step(src[sent], dst[sent], (src * case.n + dst)[sent])


def _others(case: Case) -> tuple[Ints, Ints]:
    others = np.delete(np.arange(case.n), case.root)
    return others, np.full(case.n - 1, case.root)


def gather(case: Case) -> Iterator[Step]:
    """Every member sends its chunk to the root."""
    if case.n > 1:
        others, root = _others(case)
        yield Step(others, root, others)


def scatter(case: Case) -> Iterator[Step]:
    """The root sends every member its chunk."""
    if case.n > 1:
        others, root = _others(case)
        yield Step(root, others, others)


def send(case: Case) -> Iterator[Step]:
    """Member 0 sends to member 1."""
    if case.n == 2:
        yield Step(np.array([0]), np.array([1]), np.array([0]))
    elif case.n > 2:
        raise InputError(f"a send has two members, not {case.n}")
