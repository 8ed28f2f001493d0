"""Collective algorithms, one module per family, each defined once as steps (:mod:`.schedule`).

:func:`steps` is the definition, :func:`chunks` the sizes it refers to, :func:`holdings` what it promises,
:func:`phases` its sum for the engine. All work for any group of one member or more; a group of one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.network.collectives import direct, hierarchical, ring, tree
from emulator.network.collectives.schedule import (
    OFFERED_PAIRS_LIMIT,
    Case,
    Phase,
    Step,
    chunk_elements,
    equal_chunks,
    nothing,
    pair_chunks,
    phases_of,
    whole,
)
from emulator.network.maxmin import Floats, Ints

__all__ = [
    "COLLECTIVES", "Phase", "Step", "algorithms", "bus_factor", "chunk_elements", "chunks", "holdings", "phases",
    "steps",
]  # fmt: skip


@dataclass(frozen=True)
class _Algorithm:
    """``phases`` is None where every step is a phase of its own."""

    steps: Callable[[Case], Iterator[Step]]
    chunks: Callable[[Case], Floats]
    phases: Callable[[Case], tuple[Phase, ...]] | None = None


# In order of preference where two take equally long.
_ALGORITHMS: dict[str, dict[str, _Algorithm]] = {
    "all_reduce": {
        "ring": _Algorithm(ring.all_reduce, equal_chunks, ring.twice_around),
        "direct": _Algorithm(direct.all_reduce, equal_chunks),
        "hierarchical": _Algorithm(hierarchical.all_reduce, equal_chunks, hierarchical.all_reduce_phases),
    },
    "all_gather": {
        "ring": _Algorithm(ring.all_gather, equal_chunks, ring.once_around),
        "direct": _Algorithm(direct.all_gather, equal_chunks),
        "hierarchical": _Algorithm(hierarchical.all_gather, equal_chunks, hierarchical.all_gather_phases),
    },
    "reduce_scatter": {
        "ring": _Algorithm(ring.reduce_scatter, equal_chunks, ring.once_around),
        "direct": _Algorithm(direct.reduce_scatter, equal_chunks),
        "hierarchical": _Algorithm(hierarchical.reduce_scatter, equal_chunks, hierarchical.reduce_scatter_phases),
    },
    "all_to_all": {
        "direct": _Algorithm(direct.all_to_all, pair_chunks),
        "pairwise": _Algorithm(direct.pairwise_all_to_all, pair_chunks),
    },
    "broadcast": {
        "ring": _Algorithm(ring.broadcast, ring.pieces, ring.broadcast_phases),
        "binomial": _Algorithm(tree.broadcast, whole),
    },
    "reduce": {
        "ring": _Algorithm(ring.reduce, ring.pieces, ring.reduce_phases),
        "binomial": _Algorithm(tree.reduce, whole),
    },
    "gather": {"direct": _Algorithm(direct.gather, equal_chunks)},
    "scatter": {"direct": _Algorithm(direct.scatter, equal_chunks)},
    "barrier": {"dissemination": _Algorithm(tree.barrier, nothing)},
    "send": {"direct": _Algorithm(direct.send, whole)},
}

COLLECTIVES: tuple[str, ...] = tuple(_ALGORITHMS)

# Algorithms that list all pairs of members; the all-to-alls do too, but there is no other way for them.
_AVOIDABLE_PAIRS = {("all_reduce", "direct"), ("all_gather", "direct"), ("reduce_scatter", "direct")}


def steps(
    collective: str,
    algorithm: str,
    n: int,
    *,
    domains: Sequence[int] | Ints | None = None,
    root: int = 0,
    splits: Floats | None = None,
) -> Iterator[Step]:
    """The steps of an algorithm for ``n`` members, in order (their meaning: :mod:`.schedule`).

    ``domains`` i64[n]: label of each member's server (None: no servers). ``root``: an index in the group. ``splits``
    f64[n, n]: bytes from member to member of an uneven all-to-all; then S is the largest row sum.

    Raises InputError if the algorithm is unknown or does not apply.
    """
    return _known(collective, algorithm).steps(_case(n, domains, root, splits))


def phases(
    collective: str,
    algorithm: str,
    n: int,
    *,
    domains: Sequence[int] | Ints | None = None,
    root: int = 0,
    splits: Floats | None = None,
) -> tuple[Phase, ...]:
    """The steps summed up to phases, in sequence; arguments and errors as :func:`steps`.

    For rings the sum is symbolic in n, so that 65,536 members cost no more than their edges.
    """
    known, case = _known(collective, algorithm), _case(n, domains, root, splits)
    if n == 1:
        return ()
    if known.phases is not None:
        return known.phases(case)
    return phases_of(known.steps(case), n, known.chunks(case))


def chunks(collective: str, algorithm: str, n: int, *, root: int = 0, splits: Floats | None = None) -> Floats:
    """Sizes of the chunks that the steps name, f64[C], as parts of S."""
    return _known(collective, algorithm).chunks(_case(n, None, root, splits))


def holdings(collective: str, n: int, count: int, *, root: int = 0) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What a collective promises: bool[n, count] for the chunks each member contributes, and for those it ends with.

    After the last step each chunk that a member ends with is the sum of all contributions to that chunk (of its only
    one, where the collective does not reduce).
    """
    everyone = np.ones((n, count), dtype=bool)
    only_root = np.zeros((n, count), dtype=bool)
    only_root[root] = True
    if collective in ("all_reduce", "barrier"):
        return everyone, everyone
    if collective in ("broadcast", "reduce"):
        return (only_root, everyone) if collective == "broadcast" else (everyone, only_root)
    if collective == "send":
        first = np.zeros((n, count), dtype=bool)
        first[0] = True
        return first, first[::-1].copy()
    if collective == "all_to_all":
        sender, receiver = np.divmod(np.arange(count), n)
        member = np.arange(n)[:, np.newaxis]
        return sender == member, receiver == member
    own = np.arange(n)[:, np.newaxis] == np.arange(count)
    before = {"all_gather": own, "gather": own, "scatter": only_root, "reduce_scatter": everyone}[collective]
    after = {"all_gather": everyone, "gather": only_root, "scatter": own, "reduce_scatter": own}[collective]
    return before, after


def algorithms(collective: str, n: int, domains: Sequence[int] | Ints | None = None) -> list[str]:
    """Names of the algorithms to choose from for such a group, preferred first.

    Direct all-reduce, all-gather and reduce-scatter are left out for groups of more than 128 members; asked for by
    name they work up to 2,048, as all-to-all does.
    """
    names = list(_of(collective))
    if not _case(n, domains, 0, None).two_levels:
        names = [name for name in names if name != "hierarchical"]
    if n > OFFERED_PAIRS_LIMIT:
        names = [name for name in names if (collective, name) not in _AVOIDABLE_PAIRS]
    return names


def bus_factor(collective: str, n: int) -> float:
    """busbw / algbw, so that busbw is what a link carries whatever n is (nccl-tests, PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (n - 1) / n
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (n - 1) / n
    return 1.0


def _case(n: int, domains: Sequence[int] | Ints | None, root: int, splits: Floats | None) -> Case:
    labels = None if domains is None else np.asarray(domains, dtype=np.int64)
    return Case(n, root, labels, None if splits is None else np.asarray(splits, dtype=np.float64))


def _of(collective: str) -> dict[str, _Algorithm]:
    if collective not in _ALGORITHMS:
        raise InputError(f"unknown collective {collective!r}", remedy=f"known: {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[collective]


def _known(collective: str, algorithm: str) -> _Algorithm:
    known = _of(collective)
    if algorithm not in known:
        raise InputError(f"unknown algorithm {algorithm!r} for {collective}", remedy=f"known: {', '.join(known)}")
    return known[algorithm]
