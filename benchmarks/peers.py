"""The workloads on which other simulators were measured, next to their figures.

    python benchmarks/peers.py [--only WORD] [--timeout SECONDS]

Simulated times can be compared digit by digit. CPU seconds cannot: the peers' are of whole processes on another machine
(2 shared cores); ours are without imports, from a trace in memory to the result. Peers: ASTRA-sim 2.0 of March 2026
(analytical backends, "unaware" and "aware" of congestion, its pure alpha-beta settings) and SimGrid 3.32 (CM02).

Where they differ by more than a little: "unaware" lets flows share a link at full rate each, "aware" stores and
forwards whole messages at a switch (twice the time), and both let a rank do one communication at a time, so that
reductions over the data axis never overlap with those over the tensor axis (GPipe from 256 ranks on, two levels).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import synthetic

from emulator.api import open_job
from emulator.replay.simulate import Options
from emulator.topology.load import load
from emulator.trace.schema import Trace

GIB_PER_SECOND = 2**30  # what ASTRA-sim calls GB/s
RING, DIRECT, HALVING = Options("ring"), Options("direct"), Options("halving_doubling")


@dataclass(frozen=True)
class Peer:
    """What a peer found: simulated ms, CPU seconds and MB of its process (NaN: not recorded)."""

    name: str
    ms: float
    cpu: float
    mb: float = np.nan


@dataclass(frozen=True)
class Case:
    """A workload on a topology (the levels of a topology file), and the peers that ran it."""

    name: str
    job: Callable[[], Trace]
    levels: str
    peers: list[Peer]
    options: Options = RING


def ring(ranks: int, bandwidth: float, latency: str) -> str:
    """A closed ring of links."""
    return f"ici: {{kind: torus, shape: [{ranks}], wrap: true, bandwidth: {bandwidth}, latency: {latency}}}"


def switch(ranks: int, bandwidth: float, latency: str) -> str:
    """One switch that never blocks; the latency is that of each of the two links."""
    return f"node: {{kind: switch, size: {ranks}, bandwidth: {bandwidth}, latency: {latency}}}"


def two_switches(ranks: int) -> str:
    """Switches of 8 at 450 GiB/s and 500 ns, one switch for all at 50 GiB/s and 2 us."""
    inner = switch(8, 450 * GIB_PER_SECOND, "500 ns")
    return f"{inner}\n  all: {{kind: tier, radix: {ranks}, bandwidth: {50 * GIB_PER_SECOND}, latency: 2 us}}"


def fat_tree(ranks: int) -> str:
    """k leaves of k hosts and k spines, k the root of the ranks; the latency is left open."""
    k = isqrt(ranks)
    link = "bandwidth: 50 GB/s, latency: {}"
    return f"leaf: {{kind: tier, radix: {2 * k}, {link}}}\n  spine: {{kind: tier, radix: {k}, {link}}}"


def torus(shape: str) -> str:
    """A closed torus; traffic to the point half-way round goes one way, as SimGrid's does; the latency is open."""
    return f"ici: {{kind: torus, shape: {shape}, wrap: true, ties: one, bandwidth: 50 GB/s, latency: {{}}}}"


def astra_all_reduce() -> list[Case]:
    """1 GiB all-reduces (ASTRA-sim, one group)."""
    cases = []
    for ranks, ms, unaware, aware, mb in (
        (8, 35.007015, 0.01, 0.01, 11), (64, 39.438127, 0.06, 0.08, 14), (256, 40.099261, 0.23, 0.27, 36),
        (1024, 40.985473, 5.1, 10.8, 355), (4096, np.nan, np.nan, np.nan, np.nan),
    ):  # fmt: skip
        peers = [Peer("unaware", ms, unaware, mb), Peer("aware", ms, aware, mb)]
        levels = ring(ranks, 50 * GIB_PER_SECOND, "500 ns")
        job = _collective("all_reduce", ranks, 2**30)
        cases.append(Case(f"ring all-reduce 1 GiB, ring of {ranks}", job, levels, peers))
    for ranks, unaware, aware, cpu, mb in (
        (256, 39.859767, 79.703517, (0.28, 0.26), 36), (1024, 39.980957, 79.941893, (1.8, 1.3), 355),
        (4096, 40.014255, 80.004485, (26.3, 15.0), 5453),
    ):  # fmt: skip
        peers = [Peer("unaware", unaware, cpu[0], mb), Peer("aware", aware, cpu[1], mb)]
        levels = switch(ranks, 50 * GIB_PER_SECOND, "500 ns")
        job = _collective("all_reduce", ranks, 2**30)
        cases.append(Case(f"halving-doubling 1 GiB, switch of {ranks}", job, levels, peers, HALVING))
    return cases


def astra_computing() -> list[Case]:
    """50 kernels a rank, no communication: equal ones, and 1 us to 100 ms long."""
    cases = []
    for ranks, equal, uniform in ((64, 0.07, 0.10), (256, 0.47, 0.38), (1024, 2.3, 3.9), (4096, 25.8, np.inf)):
        levels = switch(ranks, 50 * GIB_PER_SECOND, "500 ns")
        cases.append(Case(f"50 equal kernels x {ranks}", _equal(ranks), levels, [Peer("unaware", 50.0, equal)]))
        cases.append(Case(f"50 random kernels x {ranks}", _random(ranks), levels, [Peer("unaware", np.nan, uniform)]))
    return cases


def astra_gpipe() -> list[Case]:
    """GPipe, 8 microbatches, tensor and data all-reduces; one switch, and two levels of switches."""
    cases = []
    for (data, tensor, stages), one, aware, two in (
        ((2, 2, 2), (755.538588, 0.15, 22), (1149.852626, 0.21, 22), None),
        ((4, 4, 4), (591.118832, 1.5, 58), (978.527164, 1.1, 58), (283.181416, 0.85, 57)),
        ((8, 8, 4), (657.346544, 11.4, 210), (1107.797513, 16.3, 210), (316.504584, 10.4, 193)),
        ((32, 8, 4), (664.991152, 66.4, 1065), (1121.535369, 86.7, 1066), (328.757192, 66.4, 793)),
    ):
        ranks = data * tensor * stages
        job = _gpipe(data, tensor, stages)
        peers = [Peer("unaware", *one), Peer("aware", *aware)]
        levels = switch(ranks, 50 * GIB_PER_SECOND, "500 ns")
        cases.append(Case(f"GPipe {ranks}, one switch", job, levels, peers))
        if two is not None:
            peers = [Peer("unaware", *two)]
            cases.append(Case(f"GPipe {ranks}, two levels", job, two_switches(ranks), peers))
            if ranks == 1024:
                whole = Options("ring", folding=False)
                cases.append(Case(f"GPipe {ranks}, two levels, unfolded", job, two_switches(ranks), peers, whole))
    return cases


def simgrid() -> list[Case]:
    """64 MiB a rank as flows (SimGrid): ring all-reduce, and all-to-all with all flows at once.

    Rings without latency: SimGrid's actors wait for the latency of every step, a ring of NCCL's does not. The CPU
    seconds are of runs with 1 us per link, which take the same flows. In a burst here every flow waits for the longest
    latency of all; there each waits for its own.
    """
    shapes = {16: "4x2x2", 64: "4x4x4", 256: "8x8x4", 1024: "16x8x8"}
    gone = np.inf
    rings = {
        16: (2.5165824, (0.04, 0.04, 0.03), 32), 64: (2.64241152, (0.06, 0.07, 0.07), 33),
        256: (2.6738688, (1.20, 0.90, 0.82), 36), 1024: (np.nan, (16.4, 19.5, 19.0), 39),
    }  # fmt: skip
    bursts = {
        16: ((1.2603, 1.2603, 1.0076), (0.04, 0.04, 0.03), 33), 64: ((1.3232, 1.3232, 1.0076), (0.23, 0.10, 1.97), 39),
        256: ((np.nan, 1.3389, np.nan), (gone, 29.7, gone), 141), 1024: ((np.nan,) * 3, (np.nan,) * 3, np.nan),
    }  # fmt: skip
    cases = []
    for ranks, shape in shapes.items():
        step, ring_cpu, ring_mb = rings[ranks]
        burst, burst_cpu, burst_mb = bursts[ranks]
        for i, name in enumerate(("crossbar", "fat tree", "torus")):
            levels = (switch(ranks, 50e9, "{}"), fat_tree(ranks), torus(shape))[i]
            job, peers = _collective("all_reduce", ranks, 2**26), [Peer("SimGrid", step, ring_cpu[i], ring_mb)]
            cases.append(Case(f"ring all-reduce 64 MiB, {name} {ranks}", job, levels.replace("{}", "0 s"), peers, RING))
            job, peers = _collective("all_to_all", ranks, 2**26), [Peer("SimGrid", burst[i], burst_cpu[i], burst_mb)]
            cases.append(
                Case(f"all-to-all burst 64 MiB, {name} {ranks}", job, levels.replace("{}", "1 us"), peers, DIRECT)
            )
    return cases


def _collective(kind: str, ranks: int, size: int) -> Callable[[], Trace]:
    return lambda: synthetic.one_collective(kind, ranks, size)  # type: ignore[arg-type]


def _equal(ranks: int) -> Callable[[], Trace]:
    return lambda: synthetic.computing(ranks, equal=1e-3)


def _random(ranks: int) -> Callable[[], Trace]:
    return lambda: synthetic.computing(ranks)


def _gpipe(data: int, tensor: int, stages: int) -> Callable[[], Trace]:
    return lambda: synthetic.gpipe(data, tensor, stages)


CASES = [*astra_all_reduce(), *astra_computing(), *astra_gpipe(), *simgrid()]


def measure(case: Case) -> dict[str, Any]:
    """Run one case here."""
    trace = case.job()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "peer.yaml"
        file.write_text(f"name: peer\ndescription: as a peer had it\ndevice: h100\nlevels:\n  {case.levels}\n")
        job, prepare = measuring.cpu(lambda: open_job(trace, load(str(file), ranks=trace.world_size)))
    result, run = measuring.cpu(lambda: job.run(case.options))
    return {"ms": 1e3 * result.step_seconds, "cpu": prepare + run, "mb": measuring.peak_mb()}


def lines(case: Case, found: dict[str, Any]) -> list[str]:
    """A case as rows of the table, one per peer."""
    rows = []
    for peer in case.peers:
        theirs = f"{peer.name:<9}{_number(peer.ms, '10.4f')}{_number(peer.cpu, '8.2f')}{_number(peer.mb, '7.0f')}"
        if "failed" in found:
            rows.append(f"{case.name:<44}{found['failed']:<28}{theirs}")
            continue
        ours = f"{found['ms']:>11.4f}{found['cpu']:>8.2f}{found['mb']:>7.0f}"
        ratio = _number(found["ms"] / peer.ms, "8.3f")
        rows.append(f"{case.name:<44}{ours}   {theirs}{ratio}{_number(peer.cpu / found['cpu'], '9.1f')}")
    return rows


def _number(value: float, form: str) -> str:
    width = int(form.split(".", maxsplit=1)[0])
    if np.isinf(value):
        return f"{'given up':>{max(width, 9)}}"
    return f"{'-':>{width}}" if np.isnan(value) else f"{value:>{form}}"


def main() -> None:
    """Run the cases, one process each, and print ours beside theirs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per case")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(next(case for case in CASES if case.name == options.child))))
        return
    print(measuring.machine())
    print("peers' figures: recorded on another machine, whole processes; ours without imports")
    print(f"{'case':<44}{'ms':>11}{'CPU s':>8}{'MB':>7}   {'peer':<9}{'ms':>10}{'CPU s':>8}{'MB':>7}{'ms ratio':>9}"
          f"{'CPU gain':>9}")  # fmt: skip
    for case in CASES:
        if options.only in case.name:
            print("\n".join(lines(case, measuring.in_child(__file__, case.name, options.timeout))), flush=True)


if __name__ == "__main__":
    sys.exit(main())
