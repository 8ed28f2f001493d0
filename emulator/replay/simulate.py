"""The way from a timed job to a result: tables, fold, engine, columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.replay import closed
from emulator.replay.collect import (
    TextColumns,
    collective_uses,
    node_row_times,
    op_table,
    rank_classes,
    timelines,
)
from emulator.replay.engine import Engine
from emulator.replay.fold import Quotient, coloured, whole
from emulator.replay.groups import build_groups
from emulator.replay.loads import hottest
from emulator.replay.perturb import Perturbation
from emulator.replay.plans import Planner, parse_algorithms
from emulator.replay.reduce import drop_unsaturable
from emulator.replay.tables import build_tables
from emulator.replay.variants import Variants, build_variants
from emulator.result.schema import CollectiveUse, Folding, LinkUse, OpTable, RankClass, Timeline
from emulator.result.schema import Engine as EngineInfo
from emulator.topology.graph import Topology
from emulator.trace.expand import rows, templates
from emulator.trace.schema import Op, RankNumber, Trace


@dataclass(frozen=True)
class Job:
    """A trace with a time for every op: ``seconds`` and ``sources`` follow ``expand.templates(trace).ops``."""

    trace: Trace
    seconds: Sequence[RankNumber]
    sources: list[str]
    name: str = ""


@dataclass(frozen=True)
class Replay:
    """What a replay found, before it is put together with where the inputs came from."""

    step_seconds: float
    ranks: list[RankClass]
    programs: list[OpTable]
    timeline: list[Timeline]
    collectives: list[CollectiveUse]
    links: list[LinkUse]
    links_carrying_traffic: int
    folding: Folding
    engine: EngineInfo
    time_sources: dict[str, int]
    notes: list[str]


@dataclass(frozen=True)
class Options:
    """How to replay.

    ``algorithms``: ``ring`` or ``all_reduce=ring,...`` (default: auto). ``placement`` i64[world] is the accelerator of
    each rank (None: rank r on accelerator r). The rest switches exact short cuts off; answers stay.
    """

    algorithms: str = ""
    perturbation: Perturbation | None = None
    placement: NDArray[np.int64] | None = None
    folding: bool = True
    closed_form: bool = True
    drop_unsaturable: bool = True
    private_routes: bool = True


def simulate(
    job: Job,
    topology: Topology,
    options: Options = Options(),
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Replay a job on a topology.

    Raises InputError if the job does not fit, AnswerIsNo if the replay cannot go on.
    """
    began = time.process_time()
    trace = job.trace
    if trace.world_size > topology.accelerators:
        raise InputError(
            f"the job has {trace.world_size} ranks, {topology.name} has {topology.accelerators} accelerators",
            source=job.name or topology.name,
        )
    ops = templates(trace).ops
    unrolled = [rows(trace, p, job.name) for p in range(len(trace.programs))]
    factor = None if options.perturbation is None else options.perturbation.compute_factor(trace.world_size)
    variants = build_variants(trace, unrolled, ops, job.seconds, factor)
    quotient, notes = _quotient(trace, ops, variants, topology, options)
    tables = quotient.tables
    run = Engine(tables, progress, private_routes=options.private_routes).run()

    texts = TextColumns.of(ops, job.sources)
    table_of_program: dict[int, int] = {}
    programs: list[OpTable] = []
    table_of_node: list[int] = []
    timeline: list[Timeline] = []
    collectives: list[CollectiveUse] = []
    step = 0.0
    for node, v in enumerate(tables.node_variant.tolist()):
        variant = variants.variants[v]
        if variant.program not in table_of_program:
            table_of_program[variant.program] = len(programs)
            items = variants.items[variant.program]
            programs.append(op_table(items, ops, texts, variant.message_use, tables, node))
        table_of_node.append(table_of_program[variant.program])
        times = node_row_times(tables, run, node)
        step = max(step, float(times.end.max(initial=0.0)))
        timeline += timelines(node, programs[table_of_node[-1]], times)
        collectives += collective_uses(tables, node, times)
    links, carrying = hottest(quotient.loads(run.phase_bytes), tables, topology, step)
    classes = rank_classes(quotient.node_class, programs, table_of_node)
    return Replay(
        step_seconds=step,
        ranks=classes,
        programs=programs,
        timeline=timeline,
        collectives=collectives,
        links=links,
        links_carrying_traffic=carrying,
        folding=Folding(
            enabled=options.folding,
            method=quotient.method,
            rank_classes=len(tables.node_variant),
            ranks=trace.world_size,
            group_classes=len(tables.group_kind),
            groups=quotient.groups,
            link_classes=len(tables.capacity),
            links=topology.links,
            rounds=quotient.rounds,
            op_executions=run.executions,
            op_executions_represented=sum(c.count * len(programs[c.program].layer) for c in classes),
        ),
        engine=EngineInfo(events=run.events, solves=run.solves, cpu_seconds=time.process_time() - began),
        time_sources=_count_sources(programs),
        notes=[*notes, *_void_notes([u.void_deps for u in unrolled])],
    )


def _quotient(
    trace: Trace, ops: list[Op], variants: Variants, topology: Topology, options: Options
) -> tuple[Quotient, list[str]]:
    """The tables to run: in closed form where that applies, else by colours, else whole; and what there is to say."""
    world = trace.world_size
    place = np.arange(world, dtype=np.int64) if options.placement is None else options.placement
    algorithms = parse_algorithms(options.algorithms)
    if options.folding and options.closed_form and options.perturbation is None and options.placement is None:
        planner = Planner(trace, ops, variants, topology, algorithms, place)
        try:
            return closed.quotient(trace, variants, topology, planner), list(planner.notes)
        except closed.DoesNotApplyError:
            pass  # the general way needs no regularity
    planner = Planner(trace, ops, variants, topology, algorithms, place)
    events = None if options.perturbation is None else options.perturbation.link_events(topology.capacity)
    full = build_tables(variants, build_groups(trace, variants, planner), topology, events)
    reduced = drop_unsaturable(full, topology) if options.drop_unsaturable else full
    return (coloured if options.folding else whole)(full, reduced), list(planner.notes)


def _count_sources(programs: list[OpTable]) -> dict[str, int]:
    counts = {"measured": 0, "modelled": 0, "scaled": 0}
    for table in programs:
        codes = np.bincount(table.time_source.codes, minlength=len(table.time_source.values)).tolist()
        for value, count in zip(table.time_source.values, codes, strict=True):
            if value in counts:
                counts[value] += count
    return counts


def _void_notes(void: list[int]) -> list[str]:
    total = sum(void)
    return [f"{total} dependencies reach before the first instance of their block and hold nothing"] if total else []
