"""The way from a timed job to a result: tables, fold, engine, columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm

import numpy as np
from numpy.typing import NDArray

from emulator.collector import paused_collector
from emulator.errors import InputError
from emulator.replay import closed
from emulator.replay.collect import (
    TemplateColumns,
    collective_uses,
    node_row_times,
    op_table,
    rank_classes,
    timelines,
)
from emulator.replay.columns import RowTimes
from emulator.replay.deadlock import StuckError, explain
from emulator.replay.engine import Engine, Run
from emulator.replay.fold import Quotient, coloured, whole
from emulator.replay.groups import build_groups
from emulator.replay.loads import hottest, load_over_time, phase_bytes
from emulator.replay.perturb import Perturbation
from emulator.replay.plans import Planner, Touched, parse_algorithms
from emulator.replay.reduce import drop_unsaturable
from emulator.replay.repeats import Jump, find_jumps, late_tags, weights
from emulator.replay.tables import Tables, build_tables
from emulator.replay.variants import Variant, Variants, build_variants
from emulator.result.schema import CollectiveUse, Folding, LinkUse, Omitted, RankClass
from emulator.result.schema import Engine as EngineInfo
from emulator.result.tables import ComputeRate, LinkLoad, OpTable, Timeline
from emulator.topology.graph import Topology
from emulator.trace.expand import Rows, templates, unroll
from emulator.trace.repeats import Cut, shorten
from emulator.trace.schema import Op, RankNumber, Trace

_KEPT_INSTANCES = 32  # of a long repeat, at first
_LINKS_OVER_TIME = 10  # the load over time of so many links is kept
_SPAN = 24  # instances are left out in multiples of this, which most periods divide


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
    link_loads: list[LinkLoad]
    compute_rates: list[ComputeRate]
    folding: Folding
    omitted: list[Omitted]
    engine: EngineInfo
    time_sources: dict[str, int]
    notes: list[str]
    touched: Touched


@dataclass(frozen=True)
class Options:
    """How to replay.

    ``algorithms``: ``ring`` or ``all_reduce=ring,...`` (default: auto). ``placement`` i64[world] is the accelerator of
    each rank (None: rank r on accelerator r). What groups named in ``free`` move takes no time. ``shares``: while
    communication over links of a level (by its name) is resident, this part of the chip does not compute. The rest
    switches exact short cuts off; answers stay.
    """

    algorithms: str = ""
    perturbation: Perturbation | None = None
    placement: NDArray[np.int64] | None = None
    free: frozenset[str] = frozenset()
    shares: Mapping[str, float] = field(default_factory=dict)
    folding: bool = True
    closed_form: bool = True
    drop_unsaturable: bool = True
    private_routes: bool = True
    jump_repeats: bool = True


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
    if job.trace.world_size > topology.accelerators:
        raise InputError(
            f"the job has {job.trace.world_size} ranks, {topology.name} has {topology.accelerators} accelerators",
            source=job.name or topology.name,
        )
    with paused_collector():
        return _simulate(job, topology, options, progress, began)


def _simulate(
    job: Job, topology: Topology, options: Options, progress: Callable[[int, int], None] | None, began: float
) -> Replay:
    keep, span = _KEPT_INSTANCES, _SPAN
    while True:
        trace, cuts = shorten(job.trace, keep, span) if _may_jump(options) else (job.trace, [])
        attempt = _attempt(trace, cuts, job, topology, options, progress)
        jumps = attempt.jumps()
        if jumps is None:
            keep *= 4  # not steady yet: look longer, in the end at everything
        elif any(jump.left for jump in jumps):
            span = lcm(span, *(jump.span for jump in jumps))  # leave out whole periods only
        else:
            return _replay(attempt, jumps, job, topology, options, time.process_time() - began)


@dataclass(frozen=True)
class _Attempt:
    """One run of a trace (with all its instances, or with some cut out)."""

    trace: Trace
    cuts: list[Cut]
    ops: list[Op]
    unrolled: list[Rows]
    variants: Variants
    quotient: Quotient
    run: Run
    times: list[RowTimes]
    notes: list[str]
    touched: Touched

    @property
    def variant_of_node(self) -> list[Variant]:
        """The variant that each node runs."""
        return [self.variants.variants[v] for v in self.quotient.tables.node_variant.tolist()]

    def jumps(self) -> list[Jump] | None:
        """How the cuts are made up for; None if the run was not steady where they are."""
        if not self.cuts:
            return []
        if any(variant.row_issue is not None for variant in self.variants.variants):
            return None  # a host that runs ahead does so without bound: there is no steady state
        return find_jumps(self.cuts, [(v.program, t) for v, t in zip(self.variant_of_node, self.times, strict=True)])


def _may_jump(options: Options) -> bool:
    changes = options.perturbation.changes if options.perturbation is not None else ()
    return options.jump_repeats and not any(change.start > 0 or change.end is not None for change in changes)


def _attempt(
    trace: Trace,
    cuts: list[Cut],
    job: Job,
    topology: Topology,
    options: Options,
    progress: Callable[[int, int], None] | None,
) -> _Attempt:
    ops = templates(trace).ops
    unrolled = unroll(trace, job.name)
    factor = None if options.perturbation is None else options.perturbation.compute_factor(trace.world_size)
    variants = build_variants(trace, unrolled, ops, job.seconds, factor)
    quotient, notes, touched = _quotient(trace, ops, variants, topology, options)
    tables = quotient.tables
    try:
        run = Engine(tables, quotient.kin, progress, private_routes=options.private_routes).run()
    except StuckError as stuck:
        raise explain(stuck, ops, job.name) from None
    times = [node_row_times(tables, run, node) for node in range(len(tables.node_variant))]
    return _Attempt(trace, cuts, ops, unrolled, variants, quotient, run, times, notes, touched)


def _replay(
    attempt: _Attempt, jumps: list[Jump], job: Job, topology: Topology, options: Options, cpu_seconds: float
) -> Replay:
    """Put a run together, with the periods that were jumped over."""
    tables, run = attempt.quotient.tables, attempt.run
    known = TemplateColumns.of(attempt.ops, job.sources)
    table_of_program: dict[int, int] = {}
    programs: list[OpTable] = []
    table_of_node: list[int] = []
    timeline: list[Timeline] = []
    collectives: list[CollectiveUse] = []
    flops: list[float] = []
    executed: list[float] = []
    for node, (variant, times) in enumerate(zip(attempt.variant_of_node, attempt.times, strict=True)):
        if variant.program not in table_of_program:
            table_of_program[variant.program] = len(programs)
            items = attempt.variants.items[variant.program]
            made = op_table(items, known, variant.message_use, tables, node)
            for tag, later in late_tags(attempt.cuts, jumps, variant.program, times.end).items():
                setattr(made, tag, getattr(made, tag) + later)
            programs.append(made)
        table = programs[table_of_program[variant.program]]
        table_of_node.append(table_of_program[variant.program])
        weight = weights(jumps, times.end)
        timeline += timelines(node, table, times)
        collectives += collective_uses(tables, run, node, times, weight)
        flops.append(float(table.flops @ weight))
        executed.append(float(weight.sum()))
    classes = rank_classes(attempt.quotient.node_class, table_of_node, flops)
    step = max(float(times.end.max(initial=0.0)) for times in attempt.times) + sum(jump.seconds for jump in jumps)
    carried = phase_bytes(tables, run.transfers, weights(jumps, run.transfers.end))
    loads = attempt.quotient.loads(carried)
    changes = {} if options.perturbation is None else options.perturbation.link_events(topology.capacity)
    links, numbers = hottest(loads, topology, changes, step)
    return Replay(
        step_seconds=step,
        ranks=classes,
        programs=programs,
        timeline=timeline,
        collectives=collectives,
        links=links,
        links_carrying_traffic=int(loads.alike.sum()),
        link_loads=[
            load_over_time(attempt.quotient.carriers(number), tables, run.transfers, use.link)
            for use, number in zip(links[:_LINKS_OVER_TIME], numbers, strict=False)
        ],
        compute_rates=[times.rate for times in run.nodes if times.rate is not None],
        folding=Folding(
            enabled=options.folding,
            method=attempt.quotient.method,
            rank_classes=len(tables.node_variant),
            ranks=attempt.trace.world_size,
            group_classes=len(tables.group_kind),
            groups=attempt.quotient.groups,
            link_classes=len(tables.capacity),
            links=topology.links,
            rounds=attempt.quotient.rounds,
            op_executions=run.executions,
            op_executions_represented=round(sum(c.count * n for c, n in zip(classes, executed, strict=True))),
        ),
        omitted=[Omitted(jump.at, jump.period, jump.count) for jump in jumps],
        engine=EngineInfo(events=run.events, solves=run.solves, cpu_seconds=cpu_seconds),
        time_sources=_count_sources(programs),
        notes=[*attempt.notes, *_void_notes([u.void_deps for u in attempt.unrolled])],
        touched=attempt.touched,
    )


def _quotient(
    trace: Trace, ops: list[Op], variants: Variants, topology: Topology, options: Options
) -> tuple[Quotient, list[str], Touched]:
    """The tables to run: in closed form where that applies, else by colours, else whole; what there is to say; and
    which knobs were felt."""
    world = trace.world_size
    place = np.arange(world, dtype=np.int64) if options.placement is None else options.placement
    algorithms = parse_algorithms(options.algorithms)
    planner = Planner(trace, ops, variants, topology, algorithms, place, options.free, options.shares)
    if options.folding and options.closed_form and options.perturbation is None and options.placement is None:
        try:
            return closed.quotient(trace, variants, topology, planner), list(planner.notes), planner.touched
        except closed.DoesNotApplyError:
            pass  # the general way needs no regularity
    events = None if options.perturbation is None else options.perturbation.link_events(topology.capacity)
    full = build_tables(variants, build_groups(trace, variants, planner), topology, events)
    reduced = drop_unsaturable(full, topology) if options.drop_unsaturable else full
    notes = [*planner.notes, *_idle_changes(options.perturbation, full, reduced, topology)]
    return (coloured if options.folding else whole)(full, reduced), notes, planner.touched


def _idle_changes(
    perturbation: Perturbation | None, full: Tables, reduced: Tables, topology: Topology
) -> Iterator[str]:
    """Degraded links that nothing uses, or nothing can fill: ``reduced`` are the tables without those."""
    for change in () if perturbation is None else perturbation.changes:
        what = f"--degrade {change.text or topology.link_name(int(change.links[0]))} changed nothing:"
        if change.factor == 1:
            yield f"{what} at a factor of 1 a link has its whole capacity"
        elif not np.isin(change.links, full.phase_link).any():
            yield f"{what} no message of this job crosses the link"
        elif not np.isin(change.links, reduced.phase_link).any():
            yield f"{what} what comes in through other links cannot fill what is left of it"


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
