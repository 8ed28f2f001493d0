"""What a result does not say by itself: everything that was skipped, guessed or defaulted, and knobs that changed
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from emulator.replay.plans import parse_algorithms
from emulator.replay.simulate import Options, Replay
from emulator.result.schema import Result
from emulator.topology.graph import Topology
from emulator.units import format_seconds

if TYPE_CHECKING:
    from emulator.api import OpenJob


def caveats(job: OpenJob, replay: Replay, options: Options) -> list[str]:
    """Everything that was skipped, guessed or defaulted, counted, and what of ``options`` changed nothing."""
    return [*_assumed(job), *job.topology.findings, *_idle(job, replay, options), *_told(job, replay)]


def _assumed(job: OpenJob) -> Iterator[str]:
    device = job.device
    if not job.lowering_chosen:
        yield f"lowering: {job.lowering} by default (--lower eager times the recorded kernels one by one)"
    for reason, count in sorted(job.lowered.notes.items()):
        yield f"{count} kernels not fused: {reason}"
    for reason, count in sorted(job.timed.notes.items()):
        yield f"{count} ops timed on an assumption: {reason}"
    if device.figures == "burst":
        yield f"{device.name}: efficiencies are of kernels timed alone; a long step sustains less"
    if device.assumed:
        yield f"{device.name}: {len(device.assumed)} figures are assumed: {', '.join(device.assumed)}"


def _told(job: OpenJob, replay: Replay) -> Iterator[str]:
    for jump in replay.omitted:
        yield (
            f"steady state: {jump.count} periods of {format_seconds(jump.period_seconds)} after"
            f" {format_seconds(jump.at_seconds)} are counted, not shown one by one"
        )
    if replay.folding.enabled and replay.folding.ranks > 1 and replay.folding.rank_classes == replay.folding.ranks:
        reason = " (hashed routing treats no two alike)" if job.topology.routing.startswith("ecmp") else ""
        yield f"folding found no two ranks alike{reason}: all {replay.folding.ranks} were simulated"
    yield from replay.notes
    if job.trace.meta.notes:
        listed = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in job.trace.meta.notes.items())
        yield f"recorder: {listed}"


def _idle(job: OpenJob, replay: Replay, options: Options) -> Iterator[str]:
    """Knobs that changed nothing. Those of links that nobody uses are found by the replay (``Replay.notes``)."""
    yield from _idle_settings(job, replay)
    if options.placement is not None and np.array_equal(options.placement, np.arange(len(options.placement))):
        yield "the placement changed nothing: every rank is where it would have been"
    if options.perturbation is not None:
        for rank, factor in options.perturbation.slowdown.items():
            if factor == 1:
                yield f"--straggler {rank}:1 changed nothing: at a factor of 1 a rank computes as fast as ever"
        for change in options.perturbation.changes:
            if change.start >= replay.step_seconds:
                yield f"a degradation from {format_seconds(change.start)} on changed nothing: the step was over before"
    for kind, name in parse_algorithms(options.algorithms).items():
        if kind not in replay.touched.algorithms:
            what = f"{kind}={name}" if kind else name
            does = f"does no {kind}" if kind else "does no collective that it is for"
            yield f"--algo {what} changed nothing: the job {does} among several ranks"


def _idle_settings(job: OpenJob, replay: Replay) -> Iterator[str]:
    """Keys of the topology (``--set``) that speak of links which this job does not use, or not in that way."""
    topology, touched = job.topology, replay.touched
    for key, found in topology.links_of_key.items():
        value, levels = job.overrides.get(key, ""), set(found)
        label = " or ".join(topology.level_names[level] for level in sorted(levels))
        if not levels & touched.levels:
            yield f"{key}={value} changed nothing: no message of this job crosses {label} links"
        elif key.endswith(".latency") and levels & touched.tuned:
            yield latency_caveat(topology, key, value, partly=bool(levels & touched.latencies))


def latency_caveat(topology: Topology, key: str, value: str, *, partly: bool) -> str:
    """That latencies of links do not count where the tuning says what a collective waits (``network.nccl``).

    ``partly``: they do for some of it, which NCCL's model has no figures for.
    """
    whose = "" if topology.tuning is None else f" {topology.tuning.generation!r}"
    whence = f"come from the tuning{whose} (--set tuning=none uses those of the links)"
    if partly:
        only = "sends, exchanges and what else NCCL has no figures for"
        return f"{key}={value} counts for {only}: the other latencies {whence}"
    return f"{key}={value} changed nothing: the collectives' latencies {whence}"


def idle_seed(seed: int | None, place: str, *, hashed: bool) -> Iterator[str]:
    """A seed where nothing is drawn: the placement is not random, and routing is not ``hashed``."""
    if seed is not None and place != "random" and not hashed:
        yield f"--seed {seed} changed nothing: neither placement nor routing is drawn at random"


def idle_shares(job: OpenJob, replay: Replay, options: Options, result: Result) -> Iterator[str]:
    """Shares of the chip that were asked for (``--chip-share``) and slowed nothing."""
    slowed = sum(one.partition.slowed_seconds for one in result.ranks if one.partition is not None)
    for name, share in options.shares.items():
        level, said = job.topology.level_names.index(name), f"--chip-share {name}={share:g} changed nothing:"
        if share == job.device.chip_share.get(name, 0.0):
            yield f"{said} that is what {job.device.name} has without it"
        elif level not in replay.touched.levels:
            yield f"{said} no message of this job crosses {name} links"
        elif share and level not in replay.touched.shares:
            yield f"{said} what crosses {name} links takes a larger share by other links"
        elif share and not slowed:
            yield f"{said} nothing computes while communication is under way there"
