"""Which algorithms there are for which collective, and where each applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emulator.network.collectives import axes, direct, halving, hierarchical, ring, switched, tree, two_hop
from emulator.network.collectives.phase import AnyPhase
from emulator.network.collectives.schedule import Case, Step, member_chunks, nothing, pair_chunks, whole
from emulator.network.maxmin import Floats


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of one collective.

    ``phases`` is None where every step is a phase of its own. ``applies``: for which groups. ``offered``: for which
    of them it is weighed when nobody names an algorithm (others cost much to weigh and are never faster).
    ``switches`` names what the fabric's switches must be able to do; ``uneven``: it takes parts of unequal size.
    """

    steps: Callable[[Case], Iterator[Step]]
    chunks: Callable[[Case], Floats]
    phases: Callable[[Case], tuple[AnyPhase, ...]] | None = None
    applies: Callable[[Case], bool] = lambda _: True
    offered: Callable[[Case], bool] = lambda _: True
    switches: str | None = None
    uneven: bool = False


# Up to here all pairs at once is weighed although there are others (real libraries stop earlier: buffers per peer).
OFFERED_PAIRS_LIMIT = 128


def _few(case: Case) -> bool:
    return case.n <= OFFERED_PAIRS_LIMIT


def _never(_: Case) -> bool:
    return False


def _two_levels(case: Case) -> bool:
    return case.two_levels


def _on_grid(case: Case) -> bool:
    return case.grid is not None


def _one_switch(case: Case) -> bool:
    return len(case.server_sizes) == 1


def _rails(case: Case) -> bool:
    return case.two_levels or case.n == len(case.server_sizes)


# In order of preference where two take equally long.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm(ring.all_reduce, ring.chunks, ring.all_reduce_phases),
        "direct": Algorithm(direct.all_reduce, member_chunks, direct.all_reduce_phases, offered=_few),
        "hierarchical": Algorithm(
            hierarchical.all_reduce, member_chunks, hierarchical.all_reduce_phases, applies=_two_levels
        ),
        "multi_ring": Algorithm(axes.all_reduce, axes.chunks, axes.all_reduce_phases, applies=_on_grid),
        "halving_doubling": Algorithm(halving.all_reduce, halving.core_chunks, halving.all_reduce_phases),
        "recursive_doubling": Algorithm(halving.recursive_doubling, whole),
        "tree": Algorithm(tree.all_reduce, tree.chunks, tree.all_reduce_phases),
        "nvls": Algorithm(
            switched.all_reduce, member_chunks, switched.nvls_all_reduce_phases, applies=_one_switch, switches="nvls"
        ),
        "nvls_tree": Algorithm(
            switched.all_reduce, member_chunks, switched.nvls_tree_phases, applies=_two_levels, switches="nvls"
        ),
        "sharp": Algorithm(
            switched.all_reduce, member_chunks, switched.sharp_phases, applies=_rails, switches="sharp"
        ),
    },
    "all_gather": {
        "ring": Algorithm(ring.all_gather, ring.chunks, ring.all_gather_phases, uneven=True),
        "direct": Algorithm(direct.all_gather, member_chunks, direct.all_gather_phases, offered=_few, uneven=True),
        "hierarchical": Algorithm(
            hierarchical.all_gather, member_chunks, hierarchical.all_gather_phases, applies=_two_levels
        ),
        "multi_ring": Algorithm(axes.all_gather, axes.chunks, axes.all_gather_phases, applies=_on_grid),
        "halving_doubling": Algorithm(halving.all_gather, member_chunks, halving.all_gather_phases),
        "bruck": Algorithm(halving.bruck_all_gather, member_chunks, halving.bruck_all_gather_phases),
        "nvls": Algorithm(
            direct.all_gather, member_chunks, switched.all_gather_phases, applies=_one_switch, switches="nvls"
        ),
    },
    "reduce_scatter": {
        "ring": Algorithm(ring.reduce_scatter, ring.chunks, ring.reduce_scatter_phases, uneven=True),
        "direct": Algorithm(
            direct.reduce_scatter, member_chunks, direct.reduce_scatter_phases, offered=_few, uneven=True
        ),
        "hierarchical": Algorithm(
            hierarchical.reduce_scatter, member_chunks, hierarchical.reduce_scatter_phases, applies=_two_levels
        ),
        "multi_ring": Algorithm(axes.reduce_scatter, axes.chunks, axes.reduce_scatter_phases, applies=_on_grid),
        "halving_doubling": Algorithm(halving.reduce_scatter, member_chunks, halving.reduce_scatter_phases),
        "nvls": Algorithm(
            direct.reduce_scatter, member_chunks, switched.reduce_scatter_phases, applies=_one_switch, switches="nvls"
        ),
    },
    "all_to_all": {
        "direct": Algorithm(direct.all_to_all, pair_chunks, direct.all_to_all_phases, uneven=True),
        "pairwise": Algorithm(direct.pairwise_all_to_all, pair_chunks, offered=_never, uneven=True),
        "two_hop": Algorithm(
            two_hop.dispatch, two_hop.chunks, two_hop.dispatch_phases, applies=_two_levels, offered=_never, uneven=True
        ),
        "two_hop_combine": Algorithm(
            two_hop.combine, two_hop.chunks, two_hop.combine_phases, applies=_two_levels, offered=_never, uneven=True
        ),
        "bruck": Algorithm(
            halving.bruck_all_to_all, pair_chunks, halving.bruck_all_to_all_phases, uneven=True
        ),
    },
    "broadcast": {
        "ring": Algorithm(ring.broadcast, ring.pieces, ring.broadcast_phases),
        "binomial": Algorithm(tree.broadcast, whole),
    },
    "reduce": {
        "ring": Algorithm(ring.reduce, ring.pieces, ring.reduce_phases),
        "binomial": Algorithm(tree.reduce, whole),
    },
    "gather": {"direct": Algorithm(direct.gather, member_chunks, uneven=True)},
    "scatter": {"direct": Algorithm(direct.scatter, member_chunks, uneven=True)},
    "barrier": {"dissemination": Algorithm(tree.barrier, nothing)},
    "send": {"direct": Algorithm(direct.send, whole)},
}  # fmt: skip

# Other names that people and other tools use, without hyphens and underscores.
ALIASES = {
    "recursivehalvingdoubling": "halving_doubling",
    "rabenseifner": "halving_doubling",
    "doublebinarytree": "tree",
    "dbt": "tree",
    "multiring": "multi_ring",
    "torusring": "multi_ring",
    "twohop": "two_hop",
    "nvlstree": "nvls_tree",
    "collnet": "sharp",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "send",
    "recv": "send",
}
