"""Trees: binomial ones, the dissemination barrier, and double binary trees.

Binomial trees take ``ceil(log2 n)(a + S/B)``, the barrier ``ceil(log2 n) a`` (Thakur et al. 2005). Distances halve on
the way from the root, so that a group listed server by server crosses between servers first.

**Double binary tree** (Sanders, Speck, Traeff 2009; NCCL): half of the data goes up and down one binary tree, half the
other, whose inner members are leaves of the first; thin pieces follow each other, so that the bandwidth of every member
is used: ``2 depth a + 2 S/B`` for n > 3. In a group spread over servers only one member per server is in the trees and
the others hang on it in a chain; as many pairs of trees as a server has members use a network card each, as NCCL's
channels: ``2 ((g-1) a1 + depth a2)`` latency, ``2 S/g`` per card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from emulator.network.collectives.phase import Phase
from emulator.network.collectives.schedule import Case, Step, in_pieces
from emulator.network.maxmin import Floats, Ints

# Pieces of each tree's data in the steps. The phase is the limit of thin pieces.
PIECES = 64


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


@dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree over members: ``parent`` i64[n] (-1 at the root and for those not in it), ``depth`` i64[n]."""

    parent: Ints
    depth: Ints

    @property
    def children(self) -> Ints:
        """Members with a parent, deepest first."""
        inner = np.flatnonzero(self.parent >= 0)
        return inner[np.argsort(-self.depth[inner], kind="stable")]

    def chains(self, edge: Ints) -> Ints:
        """i64[leaves, depth]: the edge numbers (``edge`` i64[n], by child) from every leaf to the root, -1 padded."""
        childless = np.bincount(self.parent[self.parent >= 0], minlength=len(self.parent)) == 0
        leaf = np.flatnonzero(childless & (self.parent >= 0))
        found = np.full((len(leaf), int(self.depth.max())), -1)
        for step in range(found.shape[1]):
            inside = leaf >= 0
            inside[inside] = self.parent[leaf[inside]] >= 0
            found[inside, step] = edge[leaf[inside]]
            leaf = np.where(inside, self.parent[leaf], -1)
        return found


def binary_pair(k: int) -> tuple[Ints, Ints]:
    """Parents of 0..k-1 in two binary trees (-1: root): odd numbers are leaves of the first, mirrored in the second."""
    number = np.arange(k)
    lowest = number & -number
    up = (number ^ lowest) | (lowest << 1)
    first = np.where(up < k, up, number ^ lowest)
    first[:1] = -1
    if k % 2 == 0:
        second = np.where(first[::-1] >= 0, k - 1 - first[::-1], -1)
    else:  # mirroring would keep odd and even where they are: turn by one place instead
        second = np.roll(np.where(first >= 0, (first + 1) % k, -1), 1)
    return first, second


def double_trees(case: Case) -> list[Tree]:
    """The trees, each for an equal part of the data: two, or two per member of the smallest server."""
    servers = case.servers if case.several_servers else tuple(case.order[:, np.newaxis])
    table = case.order.reshape(len(servers), -1) if case.table is not None or not case.several_servers else None
    pair = binary_pair(len(servers))
    trees = []
    for channel in range(min(len(server) for server in servers)):
        chained = np.full(case.n, -1)  # each member behind the one before in its server's chain
        if table is not None:
            turned = np.roll(table, -channel, axis=1)
            chained[turned[:, 1:]] = turned[:, :-1]
            heads = turned[:, 0]
        else:
            chains = [np.roll(server, -(channel % len(server))) for server in servers]
            heads = np.array([chain[0] for chain in chains])
            for chain in chains:
                chained[chain[1:]] = chain[:-1]
        for up in pair:
            parent = chained.copy()
            parent[heads] = np.where(up >= 0, heads[up], -1)
            trees.append(Tree(parent, depths(parent)))
    return trees


def depths(parent: Ints) -> Ints:
    """i64[n]: edges between each member and the root."""
    depth, above = np.zeros(len(parent), dtype=np.int64), parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return depth


def chunks(case: Case) -> Floats:
    """Every tree's part in pieces."""
    count = PIECES * len(double_trees(case))
    return np.full(count, 1.0 / count)


def all_reduce(case: Case) -> Iterator[Step]:
    """Pieces go up every tree and are added, then down; all trees at once."""
    edges = []
    for number, tree in enumerate(double_trees(case)):
        last = int(tree.depth.max())
        for child in tree.children.tolist():
            parent, depth = int(tree.parent[child]), int(tree.depth[child])
            edges.append((last - depth, child, parent, number * PIECES, True, 2 * number))
            edges.append((last + depth - 1, parent, child, number * PIECES, False, 2 * number + 1))
    yield from in_pieces(edges, PIECES)


def all_reduce_phases(case: Case) -> tuple[Phase, ...]:
    """One phase: every tree's part over each of its edges, both ways."""
    trees = double_trees(case)
    part = 1 / len(trees)
    src, dst, up, down, count = [], [], [], [], 0
    for tree in trees:
        child = np.flatnonzero(tree.parent >= 0)
        edge = np.full(case.n, -1)
        edge[child] = count + np.arange(len(child))
        up.append(tree.chains(edge))
        edge[child] += len(child)
        down.append(tree.chains(edge))
        src += [child, tree.parent[child]]
        dst += [tree.parent[child], child]
        count += 2 * len(child)
    flows = np.full(count, part)
    return (Phase(np.concatenate(src), np.concatenate(dst), flows, chains=(stack(up), stack(down))),)


def stack(chains: list[Ints]) -> Ints:
    """Chains of several trees below each other, padded with -1."""
    width = max(chain.shape[1] for chain in chains)
    padded = [np.pad(chain, ((0, 0), (0, width - chain.shape[1])), constant_values=-1) for chain in chains]
    return np.concatenate(padded)
