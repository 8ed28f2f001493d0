"""From a run to a result: columns by class, collectives by group, links by load."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from emulator.network.collectives import bus_factor
from emulator.replay.columns import RowTimes, row_times
from emulator.replay.engine import Run
from emulator.replay.fold import Fold
from emulator.replay.programs import Items
from emulator.replay.tables import Tables
from emulator.result.schema import CollectiveUse, Labels, LinkUse, OpTable, RankClass, Timeline
from emulator.topology.graph import Topology
from emulator.trace.mesh import describe_ranks
from emulator.trace.schema import Op

Ints = NDArray[np.int64]
_LINKS_LISTED = 24


def labels(values: Iterable[str], template: Ints) -> Labels:
    """A text column from the text of every template."""
    texts = list(values)
    distinct = sorted({texts[t] for t in np.unique(template).tolist()})
    index = {text: i for i, text in enumerate(distinct)}
    code = np.array([index.get(text, 0) for text in texts], dtype=np.int64)
    return Labels(values=distinct, codes=code[template])


def op_table(items: Items, ops: list[Op], sources: list[str], uses: list[int], tables: Tables, node: int) -> OpTable:
    """The op table of a program. Sizes and algorithms are those of one of its nodes."""
    rows = items.source
    t = rows.template
    size = np.zeros(len(rows), dtype=np.int64)
    algorithm = np.zeros(len(rows), dtype=np.int64)
    names = [""]
    slots = tables.node_slots[tables.node_slot_ptr[node] : tables.node_slot_ptr[node + 1]]
    for message, row in enumerate(items.messages.tolist()):
        kind = tables.kinds[tables.group_kind[slots[items.message_slot[message]]]]
        plan = kind.plans[uses[message]]
        if plan.algorithm not in names:
            names.append(plan.algorithm)
        algorithm[row] = names.index(plan.algorithm)
        size[row] = int(tables.variants.uses[uses[message]].bytes)
    flops = np.array([0.0 if not isinstance(op.flops, int | float) else float(op.flops) for op in ops])
    return OpTable(
        name=labels((op.name or op.collective or op.kind for op in ops), t),
        kind=labels((op.kind for op in ops), t),
        op_class=labels((op.op_class or "" for op in ops), t),
        stream=labels((op.stream for op in ops), t),
        phase=labels((op.phase or "" for op in ops), t),
        module=labels((op.module for op in ops), t),
        group=labels((op.group for op in ops), t),
        collective=labels((op.collective or "" for op in ops), t),
        algorithm=Labels(values=names, codes=algorithm),
        time_source=labels(sources, t),
        layer=rows.tags["layer"],
        microbatch=rows.tags["microbatch"],
        stage=rows.tags["stage"],
        bytes=size,
        flops=flops[t],
        peer=labels((_peer(op) for op in ops), t),
        deps_ptr=items.all_deps_ptr,
        deps=items.all_deps,
    )


def _peer(op: Op) -> str:
    if op.peer is None:
        return ""
    return (
        str(op.peer) if isinstance(op.peer, int) else ",".join(f"{axis}{offset:+d}" for axis, offset in op.peer.items())
    )


def timelines(rank_class: int, table: OpTable, times: RowTimes) -> list[Timeline]:
    """The columns of one class, stream by stream, in order of start."""
    found = []
    for code in range(len(table.stream.values)):
        rows = np.flatnonzero(table.stream.codes == code)
        rows = rows[np.argsort(times.start[rows], kind="stable")]
        if len(rows):
            found.append(
                Timeline(
                    rank_class=rank_class, stream=table.stream.values[code], op=rows, ready=times.ready[rows],
                    start=times.start[rows], transfer_start=times.transfer_start[rows], end=times.end[rows],
                    held_by=times.held_by[rows], arrived_last=times.arrived_last[rows],
                )
            )  # fmt: skip
    return found


def rank_classes(folded: Fold, tables: list[OpTable], table_of_node: list[int]) -> list[RankClass]:
    """The classes with their ranks."""
    order = np.argsort(folded.node_class, kind="stable")
    cuts = np.searchsorted(folded.node_class[order], np.arange(len(folded.tables.node_variant) + 1))
    return [
        RankClass(
            rank_class=c, count=int(cuts[c + 1] - cuts[c]), ranks=describe_ranks(order[cuts[c] : cuts[c + 1]]),
            program=table_of_node[c], flops=float(tables[table_of_node[c]].flops.sum()),
        )
        for c in range(len(folded.tables.node_variant))
    ]  # fmt: skip


def collective_uses(tables: Tables, node: int, times: RowTimes) -> list[CollectiveUse]:
    """What one node communicated, by group and size."""
    variant = tables.variants.variants[tables.node_variant[node]]
    items = tables.variants.items[variant.program]
    slots = tables.node_slots[tables.node_slot_ptr[node] : tables.node_slot_ptr[node + 1]]
    rows_of: dict[tuple[int, int], list[int]] = {}
    for message, row in enumerate(items.messages.tolist()):
        rows_of.setdefault((items.message_slot[message], variant.message_use[message]), []).append(row)
    found = []
    for (number, use_number), listed in rows_of.items():
        slot, use = items.slots[number], tables.variants.uses[use_number]
        kind = tables.kinds[tables.group_kind[slots[number]]]
        plan = kind.plans[use_number]
        rows = np.array(listed)
        seconds = float((times.end[rows] - times.transfer_start[rows]).mean())
        collective = slot.kind if slot.kind != "collective" else use.collective
        algbw = use.bytes / seconds if seconds > 0 else None
        factor = bus_factor(use.collective, kind.size) if slot.kind == "collective" else 1.0
        found.append(
            CollectiveUse(
                collective=collective, group=kind.name, group_size=kind.size, rank_class=node, count=len(rows),
                bytes=int(use.bytes), dtype=use.dtype, algorithm=plan.algorithm, seconds=seconds,
                alone_seconds=plan.alone_seconds,
                wait_seconds=float((times.transfer_start[rows] - times.start[rows]).mean()),
                algbw_bytes_per_second=algbw,
                busbw_bytes_per_second=None if algbw is None or not factor else algbw * factor,
                congestion=max(0.0, (seconds - plan.alone_seconds) / seconds) if seconds > 0 else None,
            )
        )  # fmt: skip
    return found


def link_uses(folded: Fold, run: Run, topology: Topology, step: float) -> tuple[list[LinkUse], int]:
    """The links that carried most, and how many links of the topology carried anything."""
    tables = folded.tables
    count = np.bincount(folded.link_class, minlength=len(tables.capacity))
    _, representative = np.unique(folded.link_class, return_index=True)
    carried = np.flatnonzero(run.link_bytes > 0)
    share = run.link_bytes[carried] / (tables.capacity[carried] * step) if step > 0 else np.zeros(len(carried))
    order = np.lexsort((representative[carried], -share))
    users = _groups_by_link(tables)
    found = []
    for k in order[:_LINKS_LISTED].tolist():
        link = int(carried[k])
        original = int(representative[link])
        found.append(
            LinkUse(
                link=topology.link_name(original), level=topology.level_names[topology.link_level[original]],
                count=int(count[link]), capacity_bytes_per_second=float(tables.capacity[link]),
                bytes=float(run.link_bytes[link]), utilisation=float(share[k]), groups=sorted(users.get(link, ())),
            )
        )  # fmt: skip
    return found, int(count[carried].sum())


def _groups_by_link(tables: Tables) -> dict[int, set[str]]:
    phase_group = np.repeat(np.arange(len(tables.group_kind)), np.diff(tables.phase_start))
    kind = tables.group_kind[phase_group[np.repeat(np.arange(len(phase_group)), np.diff(tables.phase_ptr))]]
    users: dict[int, set[str]] = {}
    for link, k in np.unique(np.stack([tables.phase_link, kind], axis=1), axis=0).tolist():
        users.setdefault(link, set()).add(tables.kinds[k].name)
    return users


def node_row_times(tables: Tables, run: Run, node: int) -> RowTimes:
    """Times of the rows of one node's program."""
    variant = tables.variants.variants[tables.node_variant[node]]
    return row_times(tables.variants.items[variant.program], variant, run.nodes[node])
