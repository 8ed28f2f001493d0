"""Fits the constants of a machine in ``benchmarks/machines`` on every other size of its published sweeps.

    python benchmarks/fit_collectives.py h100-ib     # prints what belongs into the file

Fitted are: the efficiency of NVLink and of the network, one factor on all latencies of each algorithm and protocol, and
the part of the bandwidth each of them uses. The search is a coordinate descent from NCCL's published constants; the aim
is the mean and, with half the weight, the largest logarithmic error of the sizes from 256 KiB on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from collectives import HERE, is_fitted, sweeps

from emulator.network import nccl
from emulator.network.choose import Way, place_all, ways
from emulator.network.layout import layout
from emulator.topology.load import load
from emulator.topology.tuning import Tuning

SMALLEST = 2**18
FACTORS = (3.0, 1.5, 1.2, 1.08, 1.03, 1.01)
PAIRS = [("ring", "LL"), ("ring", "LL128"), ("ring", "Simple"), ("tree", "LL"), ("tree", "LL128"), ("tree", "Simple")]
PAIRS += [("nvls", "Simple"), ("nvls_tree", "Simple")]


@dataclass(frozen=True)
class Load:
    """A way to run a collective: per phase, seconds per byte of S on NVLink and on the network at efficiency 1."""

    way: Way
    nvlink: tuple[float, ...]
    network: tuple[float, ...]


@dataclass(frozen=True)
class Training:
    """The sizes and times of a sweep that are fitted on, and the ways it could have run."""

    collective: str
    sizes: tuple[float, ...]
    times: tuple[float, ...]
    loads: tuple[Load, ...]


def training(machine: str) -> tuple[list[Training], Tuning]:
    """What a machine is fitted on. Its efficiencies are taken out of the loads."""
    found = []
    for sweep in sweeps():
        if sweep["machine"] != machine or not sweep["fit"]:
            continue
        ones = {f"{level}.efficiency": "1" for level in ("node", "leaf", "spine")}
        generation = "blackwell" if machine.startswith("b200") else "hopper"
        path = HERE / "machines" / f"{machine}.yaml"
        fabric = load(str(path), ranks=sweep["ranks"], overrides=ones | {"tuning": generation})
        members = np.arange(sweep["ranks"])
        where = layout(fabric, members)
        inside = fabric.link_level == fabric.level_names.index("NVLink")
        loads = []
        for way, bound in place_all(fabric, members[np.newaxis], ways(fabric, sweep["collective"], where)):
            per_level: list[tuple[float, ...]] = []
            for level in (inside, ~inside):
                worst = [
                    p.fraction * float((p.weight / fabric.capacity[p.link])[level[p.link]].max(initial=0.0))
                    for p in bound
                ]
                per_level.append(tuple(worst))
            loads.append(Load(way, *per_level))
        points = [p for p in sweep["points"] if is_fitted(sweep, p[0]) and p[0] >= SMALLEST]
        sizes, times = zip(*points, strict=True)
        found.append(Training(sweep["collective"], sizes, times, tuple(loads)))
    assert fabric.tuning is not None
    return found, fabric.tuning


def tuned(parameters: Mapping[str, float], generation: Tuning) -> Tuning:
    """NCCL's constants with the factors and rates of the parameters."""
    constants: dict[str, dict[str, list[float]]] = {"base": {}, "intra": {}, "inter": {}}
    rates: dict[str, list[float]] = {}
    own = {"base": nccl.BASE, "intra": nccl.INTRA, "inter": nccl.INTER}
    for algorithm in dict.fromkeys(a for a, _ in PAIRS):
        factors = [parameters.get(f"latency {algorithm} {p}", 1.0) for p in nccl.PROTOCOLS]
        for name, table in own.items():
            values = table.get(algorithm, (0.0, 0.0, 0.0))
            constants[name][algorithm] = [v * f for v, f in zip(values, factors, strict=True)]
        rates[algorithm] = [parameters.get(f"rate {algorithm} {p}", 0.0) for p in nccl.PROTOCOLS]
    return Tuning(generation=generation.generation, rate=rates, **constants)  # type: ignore[arg-type]


def predict(one: Training, parameters: Mapping[str, float], tuning: Tuning) -> list[float]:
    """Seconds of every size, as ``choose.fastest`` would predict them."""
    best = [float("inf")] * len(one.sizes)
    for load_ in one.loads:
        way = load_.way
        levels = zip(load_.nvlink, load_.network, strict=True)
        per_byte = sum(max(v / parameters["nvlink"], n / parameters["network"]) for v, n in levels)
        rate = nccl.rate(tuning, way.algorithm, way.protocol, way.size)
        if rate <= 0:
            continue
        latency = nccl.latency(tuning, one.collective, way.algorithm, way.protocol, way.size)
        for i, size in enumerate(one.sizes):
            least = nccl.least_seconds(tuning, one.collective, way.protocol, way.size, size)
            best[i] = min(best[i], latency + max(size * per_byte / rate, least))
    return best


def loss(
    data: list[Training], parameters: Mapping[str, float], generation: Tuning, start: Mapping[str, float]
) -> float:
    """Mean and half of the largest |log error|, and a little for every departure from what is published.

    Departures of the links' efficiencies cost most: sweeps of large messages alone cannot tell them from the rates.
    """
    tuning = tuned(parameters, generation)
    errors = [abs(log(p / t)) for one in data for p, t in zip(predict(one, parameters, tuning), one.times, strict=True)]
    moved = sum(
        (0.05 if name in ("nvlink", "network") else 0.002) * abs(log(value / start[name]))
        for name, value in parameters.items()
    )
    return sum(errors) / len(errors) + 0.5 * max(errors) + moved


def fit(machine: str) -> tuple[dict[str, float], Tuning]:
    """The parameters that describe a machine best."""
    data, generation = training(machine)
    start = {"nvlink": 0.76 if generation.generation == "blackwell" else 0.82, "network": 0.94}
    start |= {f"latency {a} {p}": 1.0 for a, p in PAIRS}
    start |= {f"rate {a} {p}": nccl.rate(generation, a, p, nccl.Size(16, 2)) for a, p in PAIRS}
    parameters = dict(start)
    best = loss(data, parameters, generation, start)
    for factor in FACTORS * 3:
        improved = True
        while improved:
            improved = False
            for name in start:
                for step in (factor, 1 / factor):
                    value = parameters[name] * step
                    if not name.startswith("latency") and value > 1:
                        continue
                    tried = loss(data, parameters | {name: value}, generation, start)
                    if tried < best - 1e-6:
                        parameters, best, improved = parameters | {name: value}, tried, True
    return parameters, generation


def as_yaml(parameters: Mapping[str, float], generation: Tuning) -> str:
    """The part of a machine's file that holds the constants."""
    tuning = tuned(parameters, generation)
    kept: dict[str, Any] = {"generation": tuning.generation}
    for table in ("base", "intra", "inter", "rate"):
        constants = getattr(tuning, table).items()
        kept[table] = {a: [float(f"{v:.3g}") for v in values] for a, values in constants if any(values)}
    levels = {"node": {"efficiency": round(parameters["nvlink"], 3)}}
    levels |= {name: {"efficiency": round(parameters["network"], 3)} for name in ("leaf", "spine")}
    return yaml.safe_dump({"tuning": kept, "levels": levels}, sort_keys=False, default_flow_style=None)


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        print(f"# {wanted}")
        print(as_yaml(*fit(wanted)))
