"""Do the paths of a topology carry what they are given? Numbers only, no tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from emulator.network import collectives
from emulator.verify.plan import Plan

_TOLERANCE = 1e-9
_FINDINGS_PER_PLAN = 5


def route_faults(topology: Any, plans: Sequence[Plan]) -> tuple[int, list[str]]:
    """Pairs of ranks that exchange a message, and those whose paths lose or make traffic on the way.

    For every pair the shares on the links must form a unit flow: 1 leaves the source, 1 reaches the destination, and
    every other node passes on what it gets.
    """
    pairs = sorted({pair for p in plans for pair in _pairs(p)})
    if not pairs:
        return 0, []
    ends = np.array(pairs, dtype=np.int64)
    routes = topology.route(ends[:, 0], ends[:, 1])
    nodes = int(max(topology.link_src.max(), topology.link_dst.max())) + 1
    found = []
    for f, (src, dst) in enumerate(pairs):
        entries = slice(int(routes.ptr[f]), int(routes.ptr[f + 1]))
        link, share = routes.link[entries], routes.share[entries]
        balance = np.bincount(topology.link_src[link], share, nodes) - np.bincount(
            topology.link_dst[link], share, nodes
        )
        balance[src] -= 1
        balance[dst] += 1
        worst = int(np.abs(balance).argmax())
        if abs(balance[worst]) > _TOLERANCE:
            what = "loses" if balance[worst] < 0 else "makes"
            found.append(
                f"{src} to {dst} on {topology.name}: node {topology.node_names[worst]} {what} "
                f"{abs(balance[worst]):.3g} of the flow"
            )
        if (share < -_TOLERANCE).any() or (share > 1 + _TOLERANCE).any():
            found.append(f"{src} to {dst} on {topology.name}: a share is not between 0 and 1")
    return len(pairs), found


def _pairs(what: Plan) -> Iterator[tuple[int, int]]:
    for step in what.steps:
        inside = (step.src < what.members) & (step.dst < what.members)  # switches are not accelerators
        yield from zip(step.src[inside].tolist(), step.dst[inside].tolist(), strict=True)


def flow_faults(what: Plan) -> Iterator[str]:
    """Where the phases that the simulator times move other bytes between members than the steps do.

    Flows that switches add up or copy carry a chunk once where the steps name every pair: they are not compared.
    """
    n = what.members
    if n < 2 or what.tells_only or what.players > n:
        return
    parts = None if what.splits is None else np.asarray(what.splits, dtype=np.float64)
    place: dict[str, Any] = {"domains": what.domains, "grid": what.grid, "root": what.root, "splits": parts}
    fractions = collectives.chunks(what.collective, what.algorithm, n, **place)
    steps, phases = np.zeros((n, n)), np.zeros((n, n))
    for step in what.steps:
        np.add.at(steps, (step.src, step.dst), fractions[step.chunk])
    for phase in collectives.phases(what.collective, what.algorithm, n, **place):
        np.add.at(phases, (phase.src, phase.dst), phase.fraction)
    for src, dst in np.argwhere(np.abs(steps - phases) > 1e-12)[:_FINDINGS_PER_PLAN].tolist():
        yield f"{src} to {dst}: the steps send {steps[src, dst]:.6g} S, the timed flows {phases[src, dst]:.6g} S"
