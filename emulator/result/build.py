"""Results made by hand: from spans a person wrote down, or that another tool measured.

The replay fills the columns itself; everything that has spans one by one comes in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.result.schema import DeviceInfo, Folding, RankClass, Result, TopologyInfo, TraceInfo
from emulator.result.tables import COMMUNICATION, HELD_BY_HOST, HELD_BY_START, Floats, Ints, Labels, OpTable, Timeline


@dataclass(frozen=True)
class Span:
    """One op that ran from ``start`` to ``end`` (seconds), in the order of issue of its rank.

    ``deps`` are positions in the rank's list of spans. ``transfer_start`` of a communication op defaults to its start:
    everybody was there already. ``arrived_last`` is the class that came last, by default the rank's own. ``host`` says
    that only the time of issue held the op.
    """

    name: str
    start: float
    end: float
    kind: str = "compute"
    stream: str = "compute"
    transfer_start: float | None = None
    deps: Sequence[int] = ()
    host: bool = False
    op_class: str = ""
    phase: str = ""
    module: str = ""
    group: str = ""
    collective: str = ""
    algorithm: str = ""
    time_source: str = "modelled"
    layer: int = -1
    microbatch: int = -1
    stage: int = -1
    bytes: int = 0
    flops: float = 0.0
    peer: str = ""
    arrived_last: int | None = None
    category: str = ""
    memory_bytes: int = 0  # of an alloc; negative of a free


def labels(column: Iterable[str]) -> Labels:
    """Dictionary-encode a column of text; values are listed in order of first appearance."""
    index: dict[str, int] = {}
    codes = [index.setdefault(value, len(index)) for value in column]
    return Labels(values=list(index), codes=np.array(codes, dtype=np.int64))


def op_table(spans: Sequence[Span]) -> OpTable:
    """What the spans are, one row each, as an op table."""

    def text(name: str) -> Labels:
        return labels(getattr(span, name) for span in spans)

    def whole(name: str) -> Ints:
        return np.array([getattr(span, name) for span in spans], dtype=np.int64)

    remembers = any(span.memory_bytes for span in spans)
    return OpTable(
        name=text("name"),
        kind=text("kind"),
        op_class=text("op_class"),
        stream=text("stream"),
        phase=text("phase"),
        module=text("module"),
        group=text("group"),
        collective=text("collective"),
        algorithm=text("algorithm"),
        time_source=text("time_source"),
        layer=whole("layer"),
        microbatch=whole("microbatch"),
        stage=whole("stage"),
        bytes=whole("bytes"),
        flops=_floats(span.flops for span in spans),
        peer=text("peer"),
        deps_ptr=np.cumsum([0, *(len(span.deps) for span in spans)], dtype=np.int64),
        deps=np.array([dep for span in spans for dep in span.deps], dtype=np.int64),
        category=text("category") if remembers else None,
        memory_bytes=whole("memory_bytes") if remembers else None,
    )


def timelines(spans: Sequence[Span], rank_class: int = 0) -> list[Timeline]:
    """When the spans ran: one timeline per stream, streams in order of first use."""
    rows_of: dict[str, list[int]] = {}
    for row, span in enumerate(spans):
        rows_of.setdefault(span.stream, []).append(row)
    held = _held_by(spans)
    return [
        Timeline(
            rank_class=rank_class,
            stream=stream,
            op=np.array(rows, dtype=np.int64),
            ready=_floats(max([0.0, *(spans[dep].end for dep in spans[row].deps)]) for row in rows),
            start=_floats(spans[row].start for row in rows),
            transfer_start=_floats(_transfer_start(spans[row]) for row in rows),
            end=_floats(spans[row].end for row in rows),
            held_by=np.array([held[row] for row in rows], dtype=np.int64),
            arrived_last=np.array([_arrived_last(spans[row], rank_class) for row in rows], dtype=np.int64),
        )
        for stream, rows in ((stream, sorted(rows, key=lambda r: spans[r].start)) for stream, rows in rows_of.items())
    ]


def result(classes: Sequence[Sequence[Span]], counts: Sequence[int] = ()) -> Result:
    """A Result from the spans of each rank class, and how many ranks each class stands for (one, if not said).

    The step ends with the last span of any rank. What spans do not tell (device, topology, links) is left empty.
    """
    counts = counts or [1] * len(classes)
    firsts = np.cumsum([0, *counts])
    ranks = sum(counts)
    sources = [span.time_source for spans in classes for span in spans if span.kind == "compute"]
    executions = sum(len(spans) for spans in classes)
    represented = sum(count * len(spans) for count, spans in zip(counts, classes, strict=True))
    return Result(
        step_seconds=max((span.end for spans in classes for span in spans), default=0.0),
        world_size=ranks,
        trace=TraceInfo("", "", "", "", "synthetic", 0.0, 0.0, 0.0, "", [], []),
        topology=TopologyInfo("", "", ranks, 0, 0, "", {}),
        device=DeviceInfo("", 0.0, "", 0.0, "", "", 0, 0),
        time_sources={source: sources.count(source) for source in ("measured", "modelled", "scaled")},
        ranks=[
            RankClass(i, count, _ranges(int(firsts[i]), count), i, sum((span.flops for span in spans), 0.0))
            for i, (spans, count) in enumerate(zip(classes, counts, strict=True))
        ],
        collectives=[],
        links=[],
        folding=Folding(ranks > len(classes), "", len(classes), ranks, 0, 0, 0, 0, 0, executions, represented),
        programs=[op_table(spans) for spans in classes],
        timeline=[line for i, spans in enumerate(classes) for line in timelines(spans, i)],
        warnings=[],
    )


def _held_by(spans: Sequence[Span]) -> list[int]:
    """The row whose end each span waited for last: a dependency or the one before it on its stream."""
    last_on: dict[str, int] = {}
    held = []
    for row, span in enumerate(spans):
        before = [*span.deps, *([last_on[span.stream]] if span.stream in last_on else [])]
        holder = max(before, key=lambda r: spans[r].end, default=HELD_BY_START)
        held.append(HELD_BY_HOST if span.host else holder)
        last_on[span.stream] = row
    return held


def _transfer_start(span: Span) -> float:
    if span.kind not in COMMUNICATION:
        return float("nan")
    return span.start if span.transfer_start is None else span.transfer_start


def _arrived_last(span: Span, rank_class: int) -> int:
    if span.kind not in COMMUNICATION:
        return -1
    return rank_class if span.arrived_last is None else span.arrived_last


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _ranges(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"
