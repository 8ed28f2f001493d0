"""The main job as one call: a trace, a topology, a device, and back comes a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from emulator import assets
from emulator.cost.lower import Lowered, lower
from emulator.cost.roofline import Timed, time_ops
from emulator.errors import InputError
from emulator.replay.simulate import Job, Replay, simulate
from emulator.report.partition import fill
from emulator.result.schema import DeviceInfo, Result, TopologyInfo, TraceInfo
from emulator.topology.devices import Device, device_names, load_device
from emulator.topology.graph import Topology
from emulator.topology.load import load as load_topology
from emulator.trace.check import load as load_trace
from emulator.trace.expand import templates
from emulator.trace.io import SUFFIXES
from emulator.trace.schema import Trace

DEFAULT_LOWERING = "compile"


def run(
    trace: str | Path | Trace,
    topology: str | Path | Topology = "fattree",
    *,
    device: str | None = None,
    algorithms: str = "",
    lowering: str | None = None,
    overrides: Mapping[str, str] | None = None,
    folding: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Replay one step of a recorded job.

    ``trace`` and ``topology`` are names of what is shipped, paths, or loaded objects; ``device`` defaults to the
    topology's; ``algorithms`` as in ``--algo``; ``lowering`` is ``eager`` or ``compile`` (default); ``overrides`` are
    dotted keys of the topology file. Raises InputError on bad input, AnswerIsNo if the replay cannot go on.
    """
    name = "trace"
    if not isinstance(trace, Trace):
        path = assets.find("traces", str(trace), SUFFIXES)
        name, trace = str(trace), load_trace(path)
    fabric = (
        topology
        if isinstance(topology, Topology)
        else load_topology(str(topology), ranks=trace.world_size, overrides=overrides)
    )
    model = _device(device, fabric)
    lowered = lower(trace, lowering or DEFAULT_LOWERING)
    timed = time_ops(templates(lowered.trace).ops, model)
    job = Job(trace=lowered.trace, seconds=timed.seconds, sources=timed.source, name=name)
    replay = simulate(job, fabric, algorithms=algorithms, folding=folding, progress=progress)
    if not replay.step_seconds > 0:
        raise InputError("the step takes no time: the trace has no op that computes or communicates", source=name)
    result = _result(trace, name, fabric, overrides or {}, model, lowered, replay)
    result.warnings = _warnings(trace, fabric, model, lowered, timed, replay, lowering is None)
    return fill(result)


def _device(name: str | None, topology: Topology) -> Device:
    if name is None and topology.device is None:
        known = ", ".join(device_names())
        raise InputError("the topology names no device", source=topology.name, remedy=f"give --device, one of: {known}")
    return load_device(name or str(topology.device))


def _result(
    trace: Trace,
    name: str,
    topology: Topology,
    overrides: Mapping[str, str],
    device: Device,
    lowered: Lowered,
    replay: Replay,
) -> Result:
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
            file=name, model=meta.model, parallel=meta.parallel, dtype=meta.dtype, source=meta.source,
            params=float(meta.params), tokens_per_step=float(meta.tokens_per_step), model_flops=float(meta.model_flops),
            model_flops_note=meta.model_flops_note, mesh_axes=trace.mesh.axes, mesh_shape=trace.mesh.shape,
        ),
        topology=TopologyInfo(
            name=topology.name, built=topology.built, accelerators=topology.accelerators, links=topology.links,
            links_carrying_traffic=replay.links_carrying_traffic, routing=topology.routing, overrides=dict(overrides),
        ),
        device=DeviceInfo(
            name=device.name, peak_flops=peak, peak_dtype=dtype, memory_bytes=device.memory_bytes,
            model=f"roofline ({device.figures} figures)", lowering=lowered_name(lowered),
            kernels_recorded=lowered.kernels_recorded, kernels_timed=lowered.kernels_timed,
        ),
        time_sources=replay.time_sources, ranks=replay.ranks, collectives=replay.collectives, links=replay.links,
        folding=replay.folding, programs=replay.programs, timeline=replay.timeline, warnings=[], engine=replay.engine,
        mfu=mfu, tokens_per_second=float(meta.tokens_per_step) / step if meta.tokens_per_step else None,
    )  # fmt: skip


def lowered_name(lowered: Lowered) -> str:
    """The lowering that was applied: a trace that stayed as it was recorded is eager."""
    return "eager" if lowered.kernels_recorded == lowered.kernels_timed else "compile"


def _warnings(
    trace: Trace, topology: Topology, device: Device, lowered: Lowered, timed: Timed, replay: Replay, defaulted: bool
) -> list[str]:
    """Everything that was skipped, guessed or defaulted, counted."""
    found = []
    if defaulted:
        found.append(f"lowering: {DEFAULT_LOWERING} by default (--lower eager times the recorded kernels one by one)")
    found += [f"{count} kernels not fused: {reason}" for reason, count in sorted(lowered.notes.items())]
    found += [f"{count} ops timed on an assumption: {reason}" for reason, count in sorted(timed.notes.items())]
    if device.figures == "burst":
        found.append(f"{device.name}: efficiencies are of kernels timed alone; a long step sustains less")
    found += [f"{device.name}: assumed {what}" for what in device.assumed]
    found += list(topology.findings)
    found += replay.notes
    found += [f"recorder: {count} {what.replace('_', ' ')}" for what, count in trace.meta.notes.items()]
    return found
