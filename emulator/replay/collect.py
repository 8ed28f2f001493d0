"""From a run to a result: columns by class, collectives by group, links by load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.network.collectives import bus_factor
from emulator.replay.columns import RowTimes, row_times
from emulator.replay.engine import Run
from emulator.replay.programs import Items
from emulator.replay.tables import Tables
from emulator.result.schema import CollectiveUse, RankClass
from emulator.result.tables import Labels, OpTable, Timeline
from emulator.rows import by_value
from emulator.trace.mesh import describe_ranks
from emulator.trace.schema import Op, PerRank, RankNumber

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MEMORY_SIGN = {"alloc": 1, "free": -1}


@dataclass(frozen=True)
class TemplateColumns:
    """What op tables say of all templates of a trace, worked out once: every program picks its rows.

    ``texts``: distinct values and codes; ``flops``; ``memory``: bytes that come (free: that go), None without events.
    """

    texts: dict[str, tuple[list[str], Ints]]
    flops: Floats
    memory: Ints | None

    @staticmethod
    def of(ops: list[Op], sources: list[str]) -> TemplateColumns:
        """The columns of all templates; ``sources``: where the time of each is from."""
        texts: dict[str, list[str]] = {
            "name": [op.name or op.collective or op.kind for op in ops],
            "kind": [str(op.kind) for op in ops],
            "op_class": [str(op.op_class or "") for op in ops],
            "stream": [op.stream for op in ops],
            "phase": [str(op.phase or "") for op in ops],
            "module": [op.module for op in ops],
            "group": [op.group for op in ops],
            "collective": [str(op.collective or "") for op in ops],
            "time_source": sources,
            "peer": [_peer(op) for op in ops],
        }
        memory = None
        if any(op.kind in _MEMORY_SIGN for op in ops):
            texts["category"] = [op.category for op in ops]
            memory = np.array([_MEMORY_SIGN.get(op.kind, 0) * _most(op.bytes) for op in ops], dtype=np.int64)
        flops = np.array([0.0 if not isinstance(op.flops, int | float) else float(op.flops) for op in ops])
        columns = {}
        for name, values in texts.items():
            distinct = sorted(set(values))
            index = {text: i for i, text in enumerate(distinct)}
            columns[name] = (distinct, np.array([index[text] for text in values], dtype=np.int64))
        return TemplateColumns(columns, flops, memory)


def op_table(items: Items, templates: TemplateColumns, uses: list[int], tables: Tables, node: int) -> OpTable:
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
    return OpTable(
        algorithm=Labels(values=names, codes=algorithm),
        **{name: Labels(values=values, codes=codes[t]) for name, (values, codes) in templates.texts.items()},
        layer=rows.tags["layer"],
        microbatch=rows.tags["microbatch"],
        stage=rows.tags["stage"],
        bytes=size,
        flops=templates.flops[t],
        deps_ptr=items.all_deps_ptr,
        deps=items.all_deps,
        memory_bytes=None if templates.memory is None else templates.memory[t],
    )


def _most(number: RankNumber) -> int:
    """A number, of one that differs between ranks the largest: what is asked is whether it fits."""
    return int(np.max(np.asarray(number.values, dtype=np.float64)) if isinstance(number, PerRank) else number)


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


def rank_classes(node_class: Ints, table_of_node: list[int], flops: list[float]) -> list[RankClass]:
    """The classes with their ranks."""
    cuts, order = by_value(node_class, len(table_of_node))
    return [
        RankClass(
            rank_class=c, count=int(cuts[c + 1] - cuts[c]), ranks=describe_ranks(order[cuts[c] : cuts[c + 1]]),
            program=table_of_node[c], flops=flops[c],
        )
        for c in range(len(table_of_node))
    ]  # fmt: skip


def collective_uses(tables: Tables, run: Run, node: int, times: RowTimes, weight: Floats) -> list[CollectiveUse]:
    """What one node communicated, by group and size; row i counts ``weight[i]`` times."""
    variant = tables.variants.variants[tables.node_variant[node]]
    items = tables.variants.items[variant.program]
    slots = tables.node_slots[tables.node_slot_ptr[node] : tables.node_slot_ptr[node + 1]]
    messages_of: dict[tuple[int, int], list[int]] = {}
    for message, key in enumerate(zip(items.message_slot, variant.message_use, strict=True)):
        messages_of.setdefault(key, []).append(message)
    execution = run.nodes[node].execution
    found = []
    for (number, use_number), messages in messages_of.items():
        slot, use = items.slots[number], tables.variants.uses[use_number]
        kind = tables.kinds[tables.group_kind[slots[number]]]
        plan = kind.plans[use_number]
        rows = items.messages[messages]
        count = weight[rows]
        seconds = float(np.average(times.end[rows] - times.transfer_start[rows], weights=count))
        collective = slot.kind if slot.kind != "collective" else use.collective
        algbw = use.bytes / seconds if seconds > 0 else None
        alone = tables.alone_seconds(int(slots[number]), plan.phases)
        own, others, slower = (count @ run.transfers.lost[execution[messages]] / count.sum()).tolist()
        factor = bus_factor(use.collective, kind.size) if slot.kind == "collective" else 1.0
        found.append(
            CollectiveUse(
                collective=collective, group=kind.name, group_size=kind.size, rank_class=node, count=round(count.sum()),
                bytes=int(use.bytes), dtype=use.dtype, algorithm=plan.algorithm, seconds=seconds,
                alone_seconds=alone,
                wait_seconds=float(np.average(times.transfer_start[rows] - times.start[rows], weights=count)),
                algbw_bytes_per_second=algbw,
                busbw_bytes_per_second=None if algbw is None or not factor else algbw * factor,
                congestion=max(0.0, (seconds - alone) / seconds) if seconds > 0 else None,
                own_rank_seconds=own,
                other_ranks_seconds=others,
                slower_links_seconds=slower,
            )
        )  # fmt: skip
    return found


def node_row_times(tables: Tables, run: Run, node: int) -> RowTimes:
    """Times of the rows of one node's program."""
    variant = tables.variants.variants[tables.node_variant[node]]
    return row_times(tables.variants.items[variant.program], variant, run.nodes[node])
