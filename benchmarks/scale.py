"""How the cost grows with the job: 64 to 1,048,576 ranks, with and without what breaks symmetry.

    python benchmarks/scale.py [--only WORD] [--timeout SECONDS] [--list]

Every case runs in a process of its own. "prepare" is lowering and building the topology, "replay" tables, folding and
simulation, "report" the partition of the step and all else up to the result; the target of a case is for the three
together, in CPU seconds of one core, imports not counted. Rates are of the replay. Op executions are
those of all ranks, whether simulated one by one or as a class.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import synthetic

from emulator.api import open_job
from emulator.replay.perturb import LinkChange, Perturbation
from emulator.replay.simulate import Options
from emulator.topology.graph import Topology
from emulator.trace import io
from emulator.trace.schema import Trace


@dataclass(frozen=True)
class Case:
    """A job, how it is replayed, and what it may cost. ``options`` gets the topology; ``file``: count reading too."""

    name: str
    job: Callable[[], Trace]
    seconds: float | None = None
    mb: float | None = None
    per_second: float | None = None
    options: Callable[[Topology], Options] = field(default=lambda _: Options())
    topology: str = "fattree"
    overrides: dict[str, str] = field(default_factory=dict)
    file: bool = False


def _slow_rank(_: Topology) -> Options:
    return Options(perturbation=Perturbation(slowdown={5000: 1.1}))


def _half_link(level: str, source: int | None) -> Callable[[Topology], Options]:
    """One link of a level at half its capacity: that which leaves accelerator ``source``, or the first."""

    def options(topology: Topology) -> Options:
        links = topology.link_level == topology.level_names.index(level)
        if source is not None:
            links &= topology.link_src == source
        return Options(perturbation=Perturbation(changes=[LinkChange(np.flatnonzero(links)[:1], 0.5)]))

    return options


def _shuffled(folding: bool) -> Callable[[Topology], Options]:
    def options(topology: Topology) -> Options:
        return Options(placement=np.random.default_rng(1).permutation(topology.accelerators), folding=folding)

    return options


def _llama(data: int, **more: int) -> Callable[[], Trace]:
    return lambda: synthetic.llama(data=data, **more)


def _ring(_: Topology) -> Options:
    return Options(algorithms="ring")


_WHOLE = Options(folding=False)
_HALVED = {"spine.oversubscription": "2"}
# The preset's switches of 64 ports end at 65,536 accelerators.
_WIDER = {f"{tier}.radix": "128" for tier in ("leaf", "spine", "core")}
_WIDEST = {f"{tier}.radix": "256" for tier in ("leaf", "spine", "core")}
CASES = [
    Case("llama 64", _llama(2, stages=4)),
    Case("llama 256", _llama(8, stages=4)),
    Case("llama 2,048", _llama(16)),
    Case("llama 16,384", _llama(128), 1.0, 200),
    Case("llama 16,384, coloured", _llama(128), 1.0, 200, options=lambda _: Options(closed_form=False)),
    Case("llama 131,072", _llama(1024), 5.0, 700, overrides=_WIDER),
    Case("llama 131,072, coloured", _llama(1024), 5.0, 700, options=lambda _: Options(closed_form=False),
         overrides=_WIDER),
    Case("llama 1,048,576", _llama(8192), 1.0, overrides=_WIDEST),
    Case("llama 16,384, one straggler", _llama(128), 3.0, options=_slow_rank),
    Case("llama 16,384, one NIC at half", _llama(128), 3.0, options=_half_link("NIC", 5000)),
    Case("llama 16,384, one leaf uplink at half", _llama(128), 3.0, options=_half_link("leaf-spine", None)),
    Case("llama 16,384, uplink at half, 2:1", _llama(128), 3.0, options=_half_link("leaf-spine", None),
         overrides=_HALVED),
    Case("llama 2,048, unfolded", _llama(16), per_second=150e3, options=lambda _: _WHOLE),
    Case("llama 256, unfolded, random placement", _llama(8, stages=4), per_second=30e3, options=_shuffled(False)),
    Case("gpipe 1,024", synthetic.gpipe, 1.5, 150),
    Case("gpipe 1,024, unfolded", synthetic.gpipe, 8.0, options=lambda _: _WHOLE),
    Case("ring all-reduce 1 GiB, 1,024", lambda: synthetic.one_collective(ranks=1024), 0.3, options=_ring),
    Case("ring all-reduce 1 GiB, 4,096", lambda: synthetic.one_collective(ranks=4096), 0.3, options=_ring),
    Case("ring all-reduce 1 GiB, 65,536", lambda: synthetic.one_collective(ranks=65536), 0.3, options=_ring),
    Case("all-to-all 64 MiB, 256", lambda: synthetic.one_collective("all_to_all", 256, 2**26), 1.0),
    Case("all-to-all 64 MiB, 1,024", lambda: synthetic.one_collective("all_to_all", 1024, 2**26), 10.0),
    Case("computing 4,096 x 50", synthetic.computing, 2.0),
    Case("pipeline, 16 microbatches, from file", lambda: synthetic.pipeline(microbatches=16), file=True),
    Case("pipeline, 1,024 microbatches, from file", lambda: synthetic.pipeline(microbatches=1024), file=True),
    Case("pipeline, 32,768 microbatches, from file", lambda: synthetic.pipeline(microbatches=32768), file=True),
    Case("llama 16,384, from file", _llama(128), file=True),
    Case("llama 1,048,576, from file", _llama(8192), file=True, overrides=_WIDEST),
]  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """Run one case here."""
    trace: Trace | Path = case.job()
    with tempfile.TemporaryDirectory() as folder:
        if case.file:
            io.write(trace, Path(folder) / "t.json")
            trace = Path(folder) / "t.json"
        job, prepare = measuring.cpu(lambda: open_job(trace, case.topology, overrides=case.overrides))
    result, run = measuring.cpu(lambda: job.run(case.options(job.topology)))
    folding, replay = result.folding, result.engine.cpu_seconds
    return {
        "prepare": prepare,
        "replay": replay,
        "report": run - replay,
        "peak": measuring.peak_mb(),
        "classes": folding.rank_classes,
        "ops": folding.op_executions_represented,
        "simulated": folding.op_executions,
        "events": result.engine.events,
        "step": result.step_seconds,
    }


def line(case: Case, found: dict[str, Any]) -> str:
    """A case as a row of the table."""
    if "failed" in found:
        return f"{case.name:<42} {found['failed']}"
    total = found["prepare"] + found["replay"] + found["report"]
    targets = []
    if case.seconds is not None:
        targets.append(f"{'' if total <= case.seconds else '!'}{case.seconds:g} s")
    if case.mb is not None:
        targets.append(f"{'' if found['peak'] <= case.mb else '!'}{case.mb:g} MB")
    rate = found["simulated"] / found["replay"]
    if case.per_second is not None:
        targets.append(f"{'' if rate >= case.per_second else '!'}{case.per_second:,.0f}/s")
    times = "".join(f"{found[part]:>8.2f}" for part in ("prepare", "replay", "report"))
    size = f"{found['peak']:>7.0f}{found['classes']:>8,}{found['ops']:>15,}"
    rates = f"{found['ops'] / found['replay']:>10.2g}{rate:>12,.0f}{found['events'] / found['replay']:>10,.0f}"
    return f"{case.name:<42}{times}{size}{rates}{found['step']:>10.4f}  {', '.join(targets)}"


def main() -> None:
    """Run the cases, one process each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per case")
    parser.add_argument("--list", action="store_true", help="names of the cases")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(next(case for case in CASES if case.name == options.child))))
        return
    chosen = [case for case in CASES if options.only in case.name]
    if options.list:
        print("\n".join(case.name for case in chosen))
        return
    print(measuring.machine())
    print(
        f"{'case':<42}{'prepare':>8}{'replay':>8}{'report':>8}{'MB':>7}{'classes':>8}{'op executions':>15}{'op/s':>10}"
        f"{'simulated/s':>12}{'events/s':>10}{'step s':>10}  target (! missed)"
    )
    for case in chosen:
        print(line(case, measuring.in_child(__file__, case.name, options.timeout)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
