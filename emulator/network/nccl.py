"""NCCL's own model of its algorithms and protocols: seconds before the bandwidth counts, and part of the bandwidth.

Constants and formulas of ``src/graph/tuning.cc``, NCCL 2.30.7 (commit 5067397). NCCL takes the algorithm and protocol
with the least ``latency + S / bandwidth``; the bandwidth of the links is not taken from there but from the fabric.

LL sends a flag with every 8 bytes (half the rate, least latency), LL128 one in 128 bytes, Simple whole chunks with a
handshake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

from emulator.network.collectives import bus_factor
from emulator.topology.tuning import Tuning

PROTOCOLS = ("LL", "LL128", "Simple")
_Three = Sequence[float]

# Seconds, in the order of PROTOCOLS; 0 where NCCL has none (the algorithm is not used with that protocol: _RATE).
BASE: Mapping[str, _Three] = {"ring": (6.6e-6, 14e-6, 8.4e-6), "tree": (6.8e-6, 14e-6, 8.4e-6)}
INTRA: Mapping[str, _Three] = {
    "ring": (0.6e-6, 1.9e-6, 3.4e-6),
    "tree": (0.6e-6, 1.25e-6, 4e-6),
    "nvls": (0, 0, 25e-6),
    "nvls_tree": (0, 0, 25e-6),
    "sharp": (0, 0, 3.7e-6),
}
INTER: Mapping[str, _Three] = {
    "ring": (2.7e-6, 4e-6, 14e-6),
    "tree": (5e-6, 8.5e-6, 14e-6),
    "nvls": (0, 0, 18e-6),
    "nvls_tree": (0, 0, 20.9e-6),
    "sharp": (0, 0, 31e-6),
}
_NET_OVERHEAD = (1e-6, 1e-6, 3e-6)  # least seconds of a ring's hop inside a node when there are several (Intel)
_ARITY_OVERHEAD = 0.4e-6  # per further GPU of a node, CollNet direct
_NONE = (0.0, 0.0, 0.0)

_NVLS_EFFICIENCY = {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
# busbw that LL reaches at most on 1, 2, and 4 or more nodes, bytes/s
_LL_MAX = {
    "volta": (39e9, 39e9, 20.4e9),
    "ampere": (87.7e9, 22.5e9, 19e9),
    "hopper": (141e9, 45e9, 35e9),
    "blackwell": (282e9, 90e9, 70e9),
}
# From how many GPUs the switch was seen to reduce (ml-engineering, network/README.md, commit 744d01e).
_NVLS_FROM = {"volta": 0, "ampere": 0, "hopper": 5, "blackwell": 6}

# What NCCL weighs for each collective; all others have one way only.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "tree", "nvls", "nvls_tree", "sharp"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_to_all": ("direct",),
}


@dataclass(frozen=True)
class Size:
    """A group of ``n`` GPUs on ``nodes`` servers."""

    n: int
    nodes: int


def rate(tuning: Tuning, algorithm: str, protocol: str, size: Size) -> float:
    """Part of the links' bandwidth that goes into data; 0: NCCL does not use this pair."""
    number = PROTOCOLS.index(protocol)
    if algorithm in tuning.rate:
        return tuning.rate[algorithm][number]
    one_node = size.nodes == 1
    reduced = _NVLS_EFFICIENCY[tuning.generation]
    own: dict[str, _Three] = {
        "ring": (0.5, 0.92, 1.0),
        "tree": (0.92 / 3.8, 0.92 * (7 / 9 if one_node else 120 / 128), 0.92),
        "nvls": (0, 0, reduced),
        "nvls_tree": (0, 0, reduced),
        "sharp": (0, 0, 1.0),
    }
    return own[algorithm][number]


def latency(tuning: Tuning, collective: str, algorithm: str, protocol: str, size: Size) -> float:
    """Seconds on top of the bytes."""
    number = PROTOCOLS.index(protocol)

    def constant(given: Mapping[str, _Three], own: Mapping[str, _Three]) -> float:
        return given.get(algorithm, own.get(algorithm, _NONE))[number]

    base = constant(tuning.base, BASE)
    intra, inter = constant(tuning.intra, INTRA), constant(tuning.inter, INTER)
    n, nodes, per_node = size.n, size.nodes, size.n / size.nodes
    if algorithm == "ring":
        if nodes > 1:
            intra = max(intra, _NET_OVERHEAD[number])
        rounds = 2 if collective == "all_reduce" else 1
        return base + rounds * ((n - nodes) * intra + (nodes - 1) * inter)
    if algorithm == "tree":
        return base + 2 * ((per_node - 1) * intra + log2(nodes) * inter)
    if algorithm == "nvls":
        return base + intra
    if algorithm == "nvls_tree":
        return base + intra + 2 * log2(nodes) * inter
    return base + 2 * (intra + _ARITY_OVERHEAD * (per_node - 1)) + inter


def least_seconds(tuning: Tuning, collective: str, protocol: str, size: Size, amount: float) -> float:
    """Seconds that the bytes take at the highest busbw the protocol reaches (LL: the GPU, not the links, limits it)."""
    if protocol != "LL":
        return 0.0
    column = min(size.nodes.bit_length() - 1, 2)
    return amount * bus_factor(collective, size.n) / _LL_MAX[tuning.generation][column]


def nvls_from(tuning: Tuning) -> int:
    """GPUs in a server from which its switch is asked to reduce."""
    return _NVLS_FROM[tuning.generation] if tuning.nvls_from is None else tuning.nvls_from
