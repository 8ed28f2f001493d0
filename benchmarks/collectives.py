"""Predicted against published collectives: signed error by size, for every machine with constants of its own.

    python benchmarks/collectives.py                 # the table of docs/accuracy.md
    python benchmarks/collectives.py --sizes         # every size
    python benchmarks/collectives.py --as-published  # NCCL's constants and the presets' efficiencies, nothing fitted

Constants of a machine are in ``benchmarks/machines``, fitted by ``benchmarks/fit_collectives.py`` on every other size
of its sweeps (the even powers of two); the sizes in between are scored. Single measurements were never fitted.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from emulator.network.choose import fastest
from emulator.network.layout import layout
from emulator.topology.load import load

HERE = Path(__file__).parent
MIB = 2**20


@dataclass(frozen=True)
class Score:
    """One size of one sweep: error is predicted over measured, minus one; ``fitted``: the constants saw it."""

    sweep: str
    bytes: int
    seconds: float
    error: float
    way: str
    fitted: bool


def sweeps() -> list[dict[str, Any]]:
    """The published measurements."""
    found: list[dict[str, Any]] = json.loads((HERE / "data" / "nccl_collectives.json").read_text())["sweeps"]
    return found


def is_fitted(sweep: dict[str, Any], size: float) -> bool:
    """Whether constants may see this size; the same sizes for all sweeps, so that none helps to predict another."""
    return bool(sweep["fit"]) and round(log2(size)) % 2 == 0


def score(sweep: dict[str, Any], *, as_published: bool = False) -> list[Score]:
    """Predict every size of a sweep."""
    machine = sweep["machine"]
    overrides = {}
    if as_published:
        overrides["tuning"] = "blackwell" if machine.startswith("b200") else "hopper"
        overrides |= {f"{level}.efficiency": "0.94" for level in ("leaf", "spine")}
        overrides["node.efficiency"] = "0.76" if machine.startswith("b200") else "0.82"
    fabric = load(str(HERE / "machines" / f"{machine}.yaml"), ranks=sweep["ranks"], overrides=overrides)
    members = np.arange(sweep["ranks"])
    where = layout(fabric, members)
    scores = []
    for size, measured in sweep["points"]:
        way, placed = fastest(fabric, members[np.newaxis], where, sweep["collective"], size)
        seconds = float(way.seconds(placed, size)[0])
        scores.append(Score(sweep["id"], size, measured, seconds / measured - 1, way.name, is_fitted(sweep, size)))
    return scores


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", action="store_true", help="every size, not only the summary")
    parser.add_argument("--as-published", action="store_true", help="without fitted constants")
    options = parser.parse_args()
    everything: list[Score] = []
    print("| sweep | machine | op | GPUs | sizes scored | median | worst | below 1 MiB: median |")
    print("|---|---|---|---|---|---|---|---|")
    for sweep in sweeps():
        scores = score(sweep, as_published=options.as_published)
        held_out = [s for s in scores if options.as_published or not s.fitted]
        large = [s for s in held_out if s.bytes >= MIB]
        small = [abs(s.error) for s in held_out if s.bytes < MIB]
        everything += large
        worst = max(large, key=lambda s: abs(s.error))
        print(
            f"| {sweep['id']} | {sweep['machine']} | {sweep['collective']} | {sweep['ranks']} | {len(large)} "
            f"| {median(abs(s.error) for s in large):.1%} | {worst.error:+.1%} at {worst.bytes / MIB:,.0f} MiB "
            f"| {f'{median(small):.1%}' if small else '-'} |"
        )
        if options.sizes:
            for s in scores:
                mark = "fitted" if s.fitted and not options.as_published else ""
                print(f"    {s.bytes:>14,} {s.seconds * 1e6:12.1f} us {s.error:+8.1%}  {s.way} {mark}")
    errors = [abs(s.error) for s in everything]
    print(f"\nFrom 1 MiB, {len(errors)} sizes scored: median {median(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
