"""How long an op takes on a device: measured if the trace says so, else a three-parameter roofline.

    seconds = t0 + max(flops / (e · peak), bytes / (h · bandwidth))

with t0 the fixed time of a kernel, e and h the fractions of the dense peak and of the memory bandwidth that its class
of ops reaches on this device. The figures, and what they were fitted on, are the device's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.topology.devices import Device
from emulator.trace.schema import Op, PerRank, RankNumber

# Element-wise ops and reductions run on vector units that no peak of a device file describes: memory decides.
MEMORY_BOUND = frozenset({"norm", "rope", "activation", "loss", "optimizer", "pointwise", "copy"})
# What a dtype is computed as on a device that has no peak for it, best choice first. float32 is never taken as tfloat32
# where it has a peak of its own: torch's default for matmuls is full precision.
INSTEAD: dict[str, tuple[str, ...]] = {
    "bfloat16": ("float16",),
    "float16": ("bfloat16",),
    "float32": ("tfloat32", "bfloat16", "float16"),
    "float64": ("float32",),
    "float8_e4m3fn": ("float8_e5m2", "bfloat16", "float16"),
    "float8_e5m2": ("float8_e4m3fn", "bfloat16", "float16"),
}
_UNSAID = "bfloat16"  # the dtype of an op that does not say: what is trained in today


@dataclass(frozen=True)
class Timed:
    """Times of a list of ops. ``seconds[i]`` is a PerRank where ranks differ; ``source[i]`` is ``"measured"``,
    ``"modelled"``, or ``"none"`` for what computes nothing (0 seconds). ``notes`` counts ops timed on an assumption.
    """

    seconds: list[float | PerRank]
    source: list[str]
    notes: dict[str, int] = field(default_factory=dict)


def time_ops(ops: Sequence[Op], device: Device) -> Timed:
    """Time every op of ``ops`` on ``device``.

    Matrix classes (and ops without class) are bound by the peak of their dtype, or of the nearest dtype that the device
    has one for (counted in the notes), or by memory; the others by memory alone. Raises InputError, naming op and
    device, if the device has no usable peak.
    """
    seconds: list[float | PerRank] = []
    source = []
    notes: Counter[str] = Counter()
    for op in ops:
        if op.kind != "compute":
            seconds.append(0.0)
            source.append("none")
        elif op.duration is not None:
            seconds.append(op.duration if isinstance(op.duration, PerRank) else float(op.duration))
            source.append("measured")
        else:
            seconds.append(_modelled(op, device, notes))
            source.append("modelled")
    return Timed(seconds=seconds, source=source, notes=dict(notes))


def _modelled(op: Op, device: Device, notes: Counter[str]) -> float | PerRank:
    backward = op.attention is not None and op.attention.backward
    op_class = "attention_backward" if backward else op.op_class or "default"
    fit = device.efficiency.get(op_class) or device.efficiency.get(op.op_class or "") or device.efficiency["default"]
    bandwidth = fit.h * device.memory_bandwidth
    sizes = (op.flops, op.bytes_read, op.bytes_written)
    if sizes == (0, 0, 0):
        notes["no size of any kind: the fixed time of a kernel"] += 1
    needs_peak = op.flops != 0 and op.op_class not in MEMORY_BOUND
    rate = fit.e * _peak(op, device, notes) if needs_peak else np.inf
    return per_rank(
        lambda flops, read, written: fit.t0 + np.maximum(flops / rate, (read + written) / bandwidth), *sizes
    )


def _peak(op: Op, device: Device, notes: Counter[str]) -> float:
    dtype = op.dtype or _UNSAID
    for candidate in (dtype, *INSTEAD.get(dtype, ())):
        if candidate not in device.peak_flops:
            continue
        if candidate != op.dtype:
            notes[f"{op.dtype or 'no recorded dtype'}: the peak of {candidate}"] += 1
        return device.peak_flops[candidate]
    known = ", ".join(device.peak_flops) or "none"
    raise InputError(
        f"the device has no peak rate for {dtype}; it has: {known}",
        source=device.name,
        place=f"op {op.id} ({op.name or op.op_class or 'compute'})",
        remedy="take another --device",
    )


def per_rank(formula: Callable[..., NDArray[np.float64]], *numbers: RankNumber) -> float | PerRank:
    """``formula`` of numbers that may differ between ranks; the result has all their axes, in order of appearance."""
    axes: list[str] = list(dict.fromkeys(axis for n in numbers if isinstance(n, PerRank) for axis in n.axes))
    if not axes:
        return float(formula(*numbers))
    return PerRank(axes=axes, values=formula(*(_spread(number, axes) for number in numbers)).tolist())


def _spread(number: RankNumber, axes: Sequence[str]) -> NDArray[np.float64]:
    """The values of ``number`` as an array with one dim for each of ``axes`` (1 where it does not depend on it)."""
    if not isinstance(number, PerRank):
        return np.asarray(number, dtype=np.float64)
    values = np.asarray(number.values, dtype=np.float64)
    present = sorted(number.axes, key=axes.index)
    values = values.transpose([number.axes.index(axis) for axis in present])
    shape = iter(values.shape)
    return values.reshape([next(shape) if axis in number.axes else 1 for axis in axes])
