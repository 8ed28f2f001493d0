"""Exact reductions of the tables: links that no traffic can saturate leave the sharing.

A link never binds if the traffic on it has to come in through other links that together hold no more than it does: a
leaf's uplink fed by the NICs beneath, its downlink drained by them. Such links keep their latency and are still
counted for what they carried; they only leave the max-min problem, which then folds better and solves faster.
(Equal parallel links are one bundle already in the topology, and routes that nobody shares become plain timeouts in
the engine: :func:`emulator.network.fluid.mark_private`.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from emulator.replay.tables import Tables
from emulator.rows import offsets
from emulator.topology.graph import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_SLACK = 1e-9  # sums of equal capacities and weights differ in the last bits


def drop_unsaturable(tables: Tables, topology: Topology) -> Tables:
    """The tables without the links that can never bind. Links with planned capacity changes, and links next to them
    as feeders, are judged by their least capacity."""
    least, most = tables.capacity.copy(), tables.capacity.copy()
    for link, events in tables.link_events.items():
        values = [capacity for _, capacity in events]
        least[link], most[link] = min(values), max(values)
    tier = _tiers(topology)
    redundant = np.zeros(len(least), dtype=bool)
    row = tables.row_of_entry
    rising = tier[topology.link_src] < tier[topology.link_dst]
    falling = tier[topology.link_src] > tier[topology.link_dst]
    # Uplinks by what comes up into their source, downlinks by what goes down from their destination.
    redundant |= rising & _covered(tables, row, least, most, rising, topology.link_dst, topology.link_src)
    redundant |= falling & _covered(tables, row, least, most, falling, topology.link_src, topology.link_dst)
    if not redundant.any():
        return tables
    keep = ~redundant[tables.phase_link]
    counts = np.bincount(row[keep], minlength=len(tables.phase_latency))
    return replace(
        tables,
        phase_ptr=offsets(counts),
        phase_link=tables.phase_link[keep],
        phase_weight=tables.phase_weight[keep],
    )


def _tiers(topology: Topology) -> Ints:
    """Hops from the nearest accelerator, per node."""
    tier = np.full(topology.nodes, -1, dtype=np.int64)
    tier[: topology.accelerators] = 0
    level = 0
    while True:
        reached = topology.link_dst[tier[topology.link_src] == level]
        new = np.unique(reached[tier[reached] < 0])
        if not len(new):
            return tier
        level += 1
        tier[new] = level


def _covered(
    tables: Tables, row: Ints, least: Floats, most: Floats, guards: Mask, guard_node: Ints, link_node: Ints
) -> Mask:
    """Links l whose guards (the ``guards`` links at the same node) hold no more than l, and carry, in every phase of
    every group, at least the weight that l carries."""
    nodes = int(max(guard_node.max(initial=0), link_node.max(initial=0))) + 1
    guarded = np.bincount(guard_node[guards], most[guards], minlength=nodes)
    has_guard = np.bincount(guard_node[guards], minlength=nodes) > 0
    candidate = has_guard[link_node] & (guarded[link_node] <= least * (1 + _SLACK))
    link, weight = tables.phase_link, tables.phase_weight
    entry = candidate[link]
    if not entry.any():
        return candidate
    guard_entry = guards[link]
    keys, inverse = np.unique(row[guard_entry] * nodes + guard_node[link[guard_entry]], return_inverse=True)
    held = np.bincount(inverse.ravel(), weight[guard_entry], minlength=len(keys))
    wanted = row[entry] * nodes + link_node[link[entry]]
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    enough = np.zeros(len(wanted), dtype=bool)
    if len(keys):
        enough = (keys[at] == wanted) & (weight[entry] <= held[at] * (1 + _SLACK))
    bad = np.zeros(len(candidate), dtype=bool)
    bad[link[entry][~enough]] = True
    return candidate & ~bad
