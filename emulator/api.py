"""The main job as one call: a trace, a topology, a device, and back comes a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator import assets
from emulator.caveats import caveats, idle_seed, idle_shares
from emulator.collector import paused_collector
from emulator.cost.lower import Lowered, lower
from emulator.cost.roofline import Timed, time_ops
from emulator.errors import InputError
from emulator.replay.perturb import Perturbation, parse_chip_share, parse_degrade, parse_stragglers
from emulator.replay.simulate import Job, Options, Replay, simulate
from emulator.report.partition import fill
from emulator.result.schema import DeviceInfo, Result, TopologyInfo, TraceInfo
from emulator.topology import placement
from emulator.topology.devices import Device, device_names, load_device
from emulator.topology.graph import Topology
from emulator.topology.load import load as load_topology
from emulator.trace.check import load as load_trace
from emulator.trace.expand import templates
from emulator.trace.io import SUFFIXES
from emulator.trace.mesh import per_rank
from emulator.trace.messages import COMMUNICATION
from emulator.trace.schema import Trace

DEFAULT_LOWERING = "compile"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class OpenJob:
    """A job on a topology, loaded and timed: it can be run again and again with other options."""

    trace: Trace
    name: str
    topology: Topology
    device: Device
    lowering: str
    lowering_chosen: bool
    lowered: Lowered
    timed: Timed
    overrides: Mapping[str, str] = field(default_factory=dict)

    def placement(self, how: str, seed: int = 0) -> NDArray[np.int64]:
        """The accelerator of each rank for a placement by name or file (:mod:`emulator.topology.placement`)."""
        axes = dict(zip(self.trace.mesh.axes, self.trace.mesh.shape, strict=True))
        return placement.place(how, self.topology, self.trace.world_size, axes=axes, seed=seed)

    def settled(self, options: Options) -> Options:
        """The options with what the device file says where they are silent."""
        known = {name: share for name, share in self.device.chip_share.items() if name in self.topology.level_names}
        return replace(options, shares=known | dict(options.shares))

    def run(self, options: Options = Options(), progress: Progress | None = None) -> Result:  # noqa: B008  (frozen)
        """Replay it. Raises InputError if it does not fit, AnswerIsNo if the replay cannot go on."""
        job = Job(trace=self.lowered.trace, seconds=self.timed.seconds, sources=self.timed.source, name=self.name)
        replay = simulate(job, self.topology, self.settled(options), progress)
        if not replay.step_seconds > 0:
            works = any(op.kind in ("compute", *COMMUNICATION) for op in templates(job.trace).ops)
            why = "all its ops last 0 s" if works else "the trace has no op that computes or communicates"
            raise InputError(f"the step takes no time: {why}", source=self.name)
        result = _result(self, replay)
        with paused_collector():
            result = fill(result)
        result.warnings = [*caveats(self, replay, options), *idle_shares(self, replay, options, result)]
        return result


def open_job(
    trace: str | Path | Trace,
    topology: str | Path | Topology = "fattree",
    *,
    device: str | None = None,
    lowering: str | None = None,
    overrides: Mapping[str, str] | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> OpenJob:
    """Load a trace, build a topology for it and time its ops; arguments as in :func:`run`."""
    name = "trace"
    if not isinstance(trace, Trace):
        path = assets.find("traces", str(trace), SUFFIXES)
        name, trace = str(trace), load_trace(path, progress)
    if not isinstance(topology, Topology):
        topology = load_topology(str(topology), ranks=trace.world_size, overrides=overrides, seed=seed)
    model = _device(device, topology)
    chosen = lowering or DEFAULT_LOWERING
    lowered = lower(trace, chosen)
    timed = time_ops(templates(lowered.trace).ops, model)
    return OpenJob(trace, name, topology, model, chosen, lowering is not None, lowered, timed, overrides or {})


def run(
    trace: str | Path | Trace,
    topology: str | Path | Topology = "fattree",
    *,
    device: str | None = None,
    lowering: str | None = None,
    overrides: Mapping[str, str] | None = None,
    stragglers: Sequence[str] = (),
    degraded: Sequence[str] = (),
    chip_share: str = "",
    place: str = "linear",
    seed: int | None = None,
    options: Options = Options(),  # noqa: B008  (frozen)
    what_if: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Replay one step of a recorded job.

    ``trace`` and ``topology`` are names of what is shipped, paths, or loaded objects; ``device`` defaults to the
    topology's; ``lowering`` is ``eager`` or ``compile`` (default); ``overrides`` are dotted keys of the topology
    file; ``stragglers`` (``RANK:FACTOR``), ``degraded`` (``LINK:FACTOR[@t1-t2]``), ``chip_share`` (``LINKS=K,...``),
    ``place`` and ``seed`` (of a random place and of hashed routing) are as on the command line; ``options`` say how to
    replay; ``what_if`` replays it again with what might help. Raises InputError on bad input, AnswerIsNo if the replay
    cannot go on.
    """
    job = open_job(trace, topology, device=device, lowering=lowering, overrides=overrides, seed=seed, progress=progress)
    if stragglers or degraded:
        changes = [parse_degrade(text, job.topology) for text in degraded]
        options = replace(options, perturbation=Perturbation(parse_stragglers(stragglers), changes))
    if chip_share:
        options = replace(options, shares=parse_chip_share(chip_share, job.topology))
    if place != "linear":
        options = replace(options, placement=job.placement(place, seed or 0))
    result = job.run(options, progress)
    hashed = job.topology.routing.startswith("ecmp") and not isinstance(topology, Topology)
    result.warnings += idle_seed(seed, place, hashed=hashed)
    if not what_if:
        return result
    from emulator.whatif import add_what_if  # noqa: PLC0415  (it stands on this module)

    return add_what_if(result, job, options, progress)


def _device(name: str | None, topology: Topology) -> Device:
    if name is None and topology.device is None:
        known = ", ".join(device_names())
        raise InputError("the topology names no device", source=topology.name, remedy=f"give --device, one of: {known}")
    return load_device(name or str(topology.device))


def _result(job: OpenJob, replay: Replay) -> Result:
    trace, topology, device = job.trace, job.topology, job.device
    meta = trace.meta
    step = replay.step_seconds
    dtype = next((d for d in (meta.dtype, "bfloat16", "float16", "float32") if d in device.peak_flops), "")
    peak = device.peak_flops.get(dtype, 0.0)
    mfu = None
    if meta.model_flops and peak:
        mfu = float(meta.model_flops) / (peak * step * trace.world_size)
    return Result(
        step_seconds=step,
        world_size=trace.world_size,
        trace=TraceInfo(
            file=job.name, model=meta.model, parallel=meta.parallel, dtype=meta.dtype, source=meta.source,
            params=float(meta.params), tokens_per_step=float(meta.tokens_per_step), model_flops=float(meta.model_flops),
            model_flops_note=meta.model_flops_note, mesh_axes=trace.mesh.axes, mesh_shape=trace.mesh.shape,
            resident={kind: float(per_rank(trace, size).max()) for kind, size in meta.resident.items()},
        ),
        topology=TopologyInfo(
            name=topology.name, built=topology.built, accelerators=topology.accelerators, links=topology.links,
            links_carrying_traffic=replay.links_carrying_traffic, routing=topology.routing,
            overrides=dict(job.overrides),
        ),
        device=DeviceInfo(
            name=device.name, peak_flops=peak, peak_dtype=dtype, memory_bytes=device.memory_bytes,
            model=f"roofline ({device.figures} figures)", lowering=job.lowering,
            kernels_recorded=job.lowered.kernels_recorded, kernels_timed=job.lowered.kernels_timed,
        ),
        time_sources=replay.time_sources, ranks=replay.ranks, collectives=replay.collectives, links=replay.links,
        link_loads=replay.link_loads, compute_rates=replay.compute_rates,
        folding=replay.folding, programs=replay.programs, timeline=replay.timeline, omitted=replay.omitted, warnings=[],
        engine=replay.engine,
        mfu=mfu, tokens_per_second=float(meta.tokens_per_step) / step if meta.tokens_per_step else None,
    )  # fmt: skip
