"""Ranks as a result writes them: ranges of a class, and peers as ranks or offsets on the mesh."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from emulator.result.schema import RankClass


def class_name(ranks: RankClass) -> str:
    """A class by its ranks, such as ``4 ranks: 0-3``."""
    return f"rank {ranks.ranks}" if ranks.count == 1 else f"{ranks.count:,} ranks: {ranks.ranks}"


def rank_ranges(text: str) -> list[tuple[int, int]]:
    """First and last rank of every range of ``0-7,16``; nothing of what is not written so."""
    found = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            found.append((int(first), int(last or first)))
    return found


def class_of_rank(members: Sequence[tuple[int, int, int]], rank: int) -> int | None:
    """The class of a rank, from sorted (first, last, class) ranges; None if it is in none."""
    at = bisect_right(members, (rank, float("inf"), 0)) - 1
    return members[at][2] if at >= 0 and members[at][0] <= rank <= members[at][1] else None


def peer_rank(peer: str, rank: int, mesh: Mapping[str, int]) -> int | None:
    """The rank that the peer of ``rank`` is: a number, or offsets such as ``pp+1`` on a mesh {axis: extent}.

    The last axis varies fastest and offsets wrap, as in the trace format. None where the mesh does not tell.
    """
    if peer.isdigit():
        return int(peer)
    offsets = {}
    for part in peer.split(","):
        axis, sign, steps = part.replace("-", "+-").partition("+")
        if not sign or axis not in mesh or not steps.lstrip("-").isdigit():
            return None
        offsets[axis] = int(steps)
    found, stride = 0, 1
    for axis, extent in reversed(list(mesh.items())):
        coordinate = (rank // stride % extent + offsets.get(axis, 0)) % extent
        found += coordinate * stride
        stride *= extent
    return found
