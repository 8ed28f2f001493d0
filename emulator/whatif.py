"""What would help: a job replayed again and again, each time with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from emulator.api import OpenJob
from emulator.replay.perturb import Perturbation
from emulator.replay.simulate import Job, Options, simulate
from emulator.report.changes import Change
from emulator.report.levers import try_changes
from emulator.result.schema import Result
from emulator.trace.schema import Op, PerRank, Program, RankNumber, Trace


def add_what_if(
    result: Result, job: OpenJob, options: Options, progress: Callable[[int, int], None] | None = None
) -> Result:
    """The result of ``job.run(options)`` with what each change worth trying would have given."""
    result.what_if = try_changes(result, lambda change: step_with(job, options, change), progress=progress)
    return result


def step_with(job: OpenJob, options: Options, change: Change) -> float:
    """Seconds of the step with one change."""
    topology, seconds, trace = job.topology, job.timed.seconds, job.lowered.trace
    options = job.settled(options)
    if change.kind == "free":
        options = replace(options, free=options.free | {change.target})
    elif change.kind == "faster":
        links = np.flatnonzero(topology.link_level == topology.level_names.index(change.target))
        topology = topology.with_capacity(links, change.factor)
    elif change.kind == "place":
        options = replace(options, placement=job.placement(change.target))
    elif change.kind == "host":
        trace = _prompt(trace)
    elif change.kind == "alone":
        options = replace(options, shares={})
    elif change.kind == "compute":
        seconds = [_scaled(value, 1 / change.factor) for value in seconds]
    else:
        seconds = [_even(value) for value in seconds]
        if options.perturbation is not None:
            options = replace(options, perturbation=Perturbation(changes=options.perturbation.changes))
    timed = Job(trace=trace, seconds=seconds, sources=job.timed.source, name=job.name)
    return simulate(timed, topology, options).step_seconds


def _prompt(trace: Trace) -> Trace:
    """The same job with a host that takes no time to issue an op."""

    def at_once(ops: list[Any]) -> list[Any]:
        return [structs.replace(op, host_seconds=0) if isinstance(op, Op) and op.host_seconds else op for op in ops]

    return structs.replace(
        trace,
        programs=[Program(at_once(program.ops)) for program in trace.programs],
        blocks={name: at_once(ops) for name, ops in trace.blocks.items()},
    )


def _scaled(seconds: RankNumber, factor: float) -> float | PerRank:
    if isinstance(seconds, PerRank):
        return PerRank(axes=seconds.axes, values=(np.asarray(seconds.values) * factor).tolist())
    return seconds * factor


def _even(seconds: RankNumber) -> float:
    """The time of the median rank."""
    return float(np.median(seconds.values)) if isinstance(seconds, PerRank) else float(seconds)
