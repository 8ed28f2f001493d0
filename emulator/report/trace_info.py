"""``emu trace info``: what a trace holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emulator.report import figures
from emulator.report.tables import Column, table
from emulator.trace.expand import Rows, templates, unroll
from emulator.trace.mesh import communicators, program_of_rank
from emulator.trace.messages import message_bytes
from emulator.trace.schema import Op, PerRank, Trace


def render(trace: Trace, name: str, width: int) -> RenderableType:
    """The content of a trace as text for a terminal of ``width`` columns."""
    unrolled = unroll(trace, name)
    ops = templates(trace).ops
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, fact in _facts(trace, unrolled, ops):
        if fact:
            grid.add_row(label, Text(fact))
    blocks: list[RenderableType] = [Text(name, style="bold"), grid, _compute(unrolled, ops, width)]
    messages = _messages(trace, unrolled, ops, width)
    if messages is not None:
        blocks.append(messages)
    return Group(*blocks)


def _facts(trace: Trace, unrolled: list[Rows], ops: list[Op]) -> Iterator[tuple[str, str]]:
    meta = trace.meta
    yield (
        "model",
        ", ".join(filter(None, (meta.model, f"{figures.count(meta.params)} parameters" if meta.params else ""))),
    )
    mesh = " x ".join(f"{axis} {size}" for axis, size in zip(trace.mesh.axes, trace.mesh.shape, strict=True))
    yield "ranks", f"{trace.world_size:,} ({mesh})"
    yield "source", ", ".join(filter(None, (meta.source, f"torch {meta.torch}" if meta.torch else "", meta.dtype)))
    yield "tokens", f"{meta.tokens_per_step:,.0f} per step" if meta.tokens_per_step else ""
    shared = np.bincount(program_of_rank(trace), minlength=len(unrolled)).tolist()
    yield (
        "programs",
        "; ".join(f"{p}: {len(r):,} ops on {n:,} ranks" for p, (r, n) in enumerate(zip(unrolled, shared, strict=True))),
    )
    yield "blocks", ", ".join(f"{block} ({len(body)} ops)" for block, body in trace.blocks.items())
    yield "written as", f"{len(ops):,} ops"
    for group in trace.groups:
        sizes = np.unique(communicators(trace, group).sizes).tolist()
        yield f"group {group}", f"{len(communicators(trace, group).sizes):,} of {' or '.join(map(str, sizes))} ranks"
    if meta.resident:
        yield (
            "resident",
            ", ".join(
                f"{figures.size(value)} {kind}"
                for kind, value in meta.resident.items()
                if not isinstance(value, PerRank)
            ),
        )
    yield "verification", "carries exec data" if trace.exec is not None else "no exec data (record with --with-state)"
    timed = sum(op.duration is not None for op in ops)
    yield "durations", f"{timed:,} of {sum(op.kind == 'compute' for op in ops):,} compute ops are measured"
    for note, count in meta.notes.items():
        yield "recorder", f"{count} {note.replace('_', ' ')}"
    void = sum(r.void_deps for r in unrolled)
    yield "void deps", f"{void} reach before the first instance of their block" if void else ""


def _compute(unrolled: list[Rows], ops: list[Op], width: int) -> RenderableType:
    counts: Counter[tuple[str, str]] = Counter()
    flops: Counter[tuple[str, str]] = Counter()
    for program in unrolled:
        for template, times in zip(*np.unique(program.template, return_counts=True), strict=True):
            op = ops[template]
            if op.kind in ("collective", "send", "recv"):
                continue
            key = (op.op_class or op.kind, op.phase or "")
            counts[key] += int(times)
            if not isinstance(op.flops, PerRank):
                flops[key] += float(op.flops) * int(times)  # type: ignore[assignment]
    keys = sorted(counts, key=lambda key: (-flops[key], -counts[key]))
    return table(
        "Ops, all programs once",
        [
            Column("class", [key[0] for key in keys], left=True),
            Column("phase", [key[1] or "-" for key in keys], rank=1, left=True),
            Column("count", [f"{counts[key]:,}" for key in keys]),
            Column("FLOPs", [figures.flops(flops[key]) if flops[key] else "-" for key in keys]),
        ],
        width,
    )


def _messages(trace: Trace, unrolled: list[Rows], ops: list[Op], width: int) -> RenderableType | None:
    members = {name: int(communicators(trace, name).sizes.max(initial=1)) for name in trace.groups}
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for program in unrolled:
        for template, times in zip(*np.unique(program.template, return_counts=True), strict=True):
            op = ops[template]
            if op.kind in ("collective", "send", "recv"):
                size = message_bytes(op, members.get(op.group, 2))
                text = "differs" if isinstance(size, PerRank) or op.splits_in is not None else figures.size(float(size))
                counts[op.collective or op.kind, op.group, text, op.dtype] += int(times)
    if not counts:
        return None
    keys = sorted(counts, key=lambda key: (key[1], key[0], key[2]))
    return table(
        "Communication, all programs once",
        [
            Column("kind", [key[0] for key in keys], left=True),
            Column("group", [key[1] or "-" for key in keys], left=True),
            Column("count", [f"{counts[key]:,}" for key in keys]),
            Column("bytes", [key[2] for key in keys]),
            Column("dtype", [key[3] for key in keys], rank=1, left=True),
        ],
        width,
    )
