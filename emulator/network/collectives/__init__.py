"""Collective algorithms, one module per family, each defined once as steps (:mod:`.schedule`).

:func:`steps` is the definition, :func:`chunks` the sizes it refers to, :func:`holdings` what it promises,
:func:`phases` its sum for the engine. All work for any group of one member or more; a group of one does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.network.collectives.phase import AllPairs, AnyPhase, Phase, phases_of
from emulator.network.collectives.schedule import Case, Grid, Step, chunk_elements
from emulator.network.collectives.table import ALGORITHMS, ALIASES, Algorithm
from emulator.network.maxmin import Floats, Ints

__all__ = [
    "COLLECTIVES", "ROOTED", "AllPairs", "AnyPhase", "Grid", "Phase", "Step", "algorithms", "bus_factor", "canonical",
    "chunk_elements", "chunks", "holdings", "names", "phases", "steps", "switches_for",
]  # fmt: skip

COLLECTIVES: tuple[str, ...] = tuple(ALGORITHMS)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
Domains = Sequence[int] | Ints | None


def steps(
    collective: str, algorithm: str, n: int, *, domains: Domains = None, root: int = 0, splits: Floats | None = None,
    grid: Grid | None = None,
) -> Iterator[Step]:  # fmt: skip
    """The steps of an algorithm for ``n`` members, in order (their meaning: :mod:`.schedule`).

    ``domains`` i64[n]: label of each member's server (None: no servers). ``root``: an index in the group. ``splits``:
    f64[n, n] bytes from member to member of an uneven all-to-all (then S is the largest row sum), f64[n] bytes of each
    member's part of an all-gather, reduce-scatter, gather or scatter (then S is their sum). ``grid``: where members sit
    on a torus.

    Raises InputError if the algorithm is unknown or does not apply.
    """
    case = _case(n, domains, root, splits, grid)
    known = _known(collective, algorithm, case)
    return known.steps(case) if n > 1 else iter(())


def phases(
    collective: str, algorithm: str, n: int, *, domains: Domains = None, root: int = 0, splits: Floats | None = None,
    grid: Grid | None = None, copies: float = 1.0,
) -> tuple[AnyPhase, ...]:  # fmt: skip
    """The steps summed up to phases, in sequence; arguments and errors as :func:`steps`.

    The sum is symbolic in n, so that 65,536 members cost no more than their edges. ``copies``: to how many members of
    another server the same data goes on average (``two_hop``).
    """
    case = _case(n, domains, root, splits, grid, copies)
    known = _known(collective, algorithm, case)
    if n == 1:
        return ()
    if known.phases is not None:
        return known.phases(case)
    return phases_of(known.steps(case), n, known.chunks(case))


def chunks(
    collective: str, algorithm: str, n: int, *, domains: Domains = None, root: int = 0, splits: Floats | None = None,
    grid: Grid | None = None,
) -> Floats:  # fmt: skip
    """Sizes of the chunks that the steps name, f64[C], as parts of S; arguments as :func:`steps`."""
    case = _case(n, domains, root, splits, grid)
    return _known(collective, algorithm, case).chunks(case)


def holdings(collective: str, n: int, count: int, *, root: int = 0) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What a collective promises: bool[n, count] for the chunks each member contributes, and for those it ends with.

    After the last step each chunk that a member ends with is the sum of all contributions to that chunk (of its only
    one, where the collective does not reduce). Chunks count members (or pairs of them) first.
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
    member = np.arange(n)[:, np.newaxis]
    if collective == "all_to_all":
        sender, receiver = np.divmod(np.arange(count) * n * n // count, n)
        return sender == member, receiver == member
    own = member == np.arange(count) * n // count
    before = {"all_gather": own, "gather": own, "scatter": only_root, "reduce_scatter": everyone}[collective]
    after = {"all_gather": everyone, "gather": only_root, "scatter": own, "reduce_scatter": own}[collective]
    return before, after


def algorithms(
    collective: str, n: int, domains: Domains = None, grid: Grid | None = None, *, splits: Floats | None = None,
    switches: Collection[str] = (), every: bool = False,
) -> list[str]:  # fmt: skip
    """Names of the algorithms to choose from for such a group, preferred first.

    ``switches``: what the fabric's switches can do (``nvls``, ``sharp``). Those that are costly to weigh and never
    faster on an idle network are left out (pairwise; direct all-reduce, all-gather and reduce-scatter of more than 128
    members) unless ``every`` is set: asked for by name they work.
    """
    case = _case(n, domains, 0, splits, grid)
    return [
        name
        for name, known in _of(collective).items()
        if known.applies(case)
        and (every or known.offered(case))
        and (known.switches is None or known.switches in switches)
        and (splits is None or known.uneven)
    ]


def names(collective: str) -> list[str]:
    """All algorithms of a collective, whether or not they apply to a certain group. Raises InputError."""
    return list(_of(collective))


def switches_for(collective: str, algorithm: str) -> str | None:
    """What switches must be able to do for an algorithm (None: nothing)."""
    return _of(collective)[algorithm].switches if algorithm in _of(collective) else None


def canonical(name: str) -> str:
    """Our name of a collective or algorithm that others write differently (``AllReduce``, ``double-binary-tree``)."""
    plain = name.strip().lower().replace("-", "_")
    return ALIASES.get(plain.replace("_", ""), plain)


def bus_factor(collective: str, n: int) -> float:
    """busbw / algbw, so that busbw is what a link carries whatever n is (nccl-tests, PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (n - 1) / n
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (n - 1) / n
    return 1.0


def _case(
    n: int, domains: Domains, root: int, splits: Floats | None, grid: Grid | None = None, copies: float = 1.0
) -> Case:
    labels = None if domains is None else np.asarray(domains, dtype=np.int64)
    return Case(n, root, labels, None if splits is None else np.asarray(splits, dtype=np.float64), grid, copies)


def _of(collective: str) -> dict[str, Algorithm]:
    if collective not in ALGORITHMS:
        raise InputError(f"unknown collective {collective!r}", remedy=f"known: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[collective]


def _known(collective: str, algorithm: str, case: Case) -> Algorithm:
    known = _of(collective)
    if algorithm not in known:
        raise InputError(f"unknown algorithm {algorithm!r} for {collective}", remedy=f"known: {', '.join(known)}")
    if case.splits is not None:
        wanted = 2 if collective == "all_to_all" else 1
        if case.splits.ndim != wanted:
            shape = " x ".join([str(case.n)] * wanted)
            raise InputError(f"splits of {collective} must be {shape}, not {' x '.join(map(str, case.splits.shape))}")
        if not known[algorithm].uneven:
            raise InputError(f"{algorithm} {collective} takes equal parts only")
    return known[algorithm]
