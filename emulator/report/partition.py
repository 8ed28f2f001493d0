"""Where the step of a rank went: the partition, and everything that splits its lines further."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from emulator.report.bubbles import bubble_causes, bubble_seconds
from emulator.report.critical import critical_path
from emulator.report.exposure import Exposure, by_kind, by_phase, expose
from emulator.report.history import history_of
from emulator.report.holding import spans_of
from emulator.report.lateness import lateness
from emulator.report.memory import memory_use
from emulator.report.pieces import LINES, Pieces, cut, pipeline_phase
from emulator.report.slowing import extra_time
from emulator.report.traits import traits_of
from emulator.result.schema import Partition, Result
from emulator.result.tables import OpTable, Timeline


def partition(table: OpTable, timelines: Sequence[Timeline], step_seconds: float) -> Partition:
    """The partition of one rank class. ``timelines`` are those of all its streams."""
    return _sum_up(cut(table, spans_of(table, timelines), step_seconds), step_seconds)


def fill(result: Result) -> Result:
    """The result with everything that follows from its timeline, in place.

    Every rank class gets its partition, compute by phase, exposed time by kind, what its lateness cost and, if ranks
    send to each other, its bubble by cause; the result gets its critical path and memory over time.
    """
    lines: list[list[Timeline]] = [[] for _ in result.ranks]
    for timeline in result.timeline:
        lines[timeline.rank_class].append(timeline)
    tables = [result.programs[ranks.program] for ranks in result.ranks]
    traits = [traits_of(program) for program in result.programs]
    spans = [spans_of(t, own, traits[r.program]) for t, own, r in zip(tables, lines, result.ranks, strict=True)]
    shown, omitted = result.shown_seconds, result.omitted
    pieces = [cut(table, own, shown, omitted) for table, own in zip(tables, spans, strict=True)]
    history = history_of(result, spans)
    phase = pipeline_phase(result, traits)
    exposures: list[Exposure] = []
    rates = {rate.rank_class: rate for rate in result.compute_rates}
    for i, (ranks, table, piece) in enumerate(zip(result.ranks, tables, pieces, strict=True)):
        ranks.partition = _sum_up(piece, result.step_seconds)
        ranks.compute_phases = by_phase(history, i, piece, piece.lengths)
        if i in rates:
            extra = extra_time(piece, rates[i])
            ranks.partition.slowed_seconds = fsum(extra.tolist())
            ranks.slowed_phases = by_phase(history, i, piece, extra)
        exposures.append(expose(history, i, piece))
        ranks.exposed = by_kind(table, exposures[-1], traits[ranks.program])
        piped = phase is not None and traits[ranks.program].uses_peers
        ranks.bubble_seconds = bubble_seconds(piece, phase) if piped and phase else None
    if phase:
        for ranks, causes in zip(result.ranks, bubble_causes(history, pieces, phase), strict=True):
            ranks.bubble = causes
    for ranks, late in zip(
        result.ranks, lateness(history, [r.count for r in result.ranks], exposures, omitted), strict=True
    ):
        ranks.lateness = late
    result.path = critical_path(history, omitted)
    resident = result.trace.resident
    result.memory = [
        use
        for i, (table, own) in enumerate(zip(tables, spans, strict=True))
        for use in memory_use(table, own, i, resident, omitted)
    ]
    return result


def _sum_up(pieces: Pieces, step_seconds: float) -> Partition:
    parts = [pieces.seconds(pieces.line == i) for i in range(len(LINES))]
    hidden_transfer = pieces.seconds(pieces.transfers & pieces.computes)
    transfer = pieces.seconds(pieces.transfers)
    return Partition(
        **{f"{name}_seconds": value for name, value in zip(LINES, parts, strict=True)},
        hidden_transfer_seconds=hidden_transfer,
        hidden_wait_seconds=pieces.seconds(pieces.communicates & ~pieces.transfers & pieces.computes),
        communication_seconds=pieces.seconds(pieces.communicates),
        overlap=hidden_transfer / transfer if transfer > 0 else None,
        sum_minus_step_seconds=fsum(parts) - step_seconds,
    )
