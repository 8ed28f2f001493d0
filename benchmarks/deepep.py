"""Mixture-of-experts dispatch and combine against DeepEP's and NCCL EP's published figures.

Tokens choose 8 of 256 experts at random in at most 4 nodes. Normal kernels: one copy per node and token over the
network, then a copy per GPU over NVLink (``two_hop``). Low-latency kernels: a message from every GPU to every expert's
(``direct``), plus a constant of the kernels, fitted on the rows of 8, 32 and 128 ranks of DeepEP and scored on all
others. Bandwidths count logical bytes as the sources do: copies that stay in the own node or GPU too.

    python benchmarks/deepep.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

from emulator.network.measure import measure
from emulator.topology.graph import Topology
from emulator.topology.load import load

EXPERTS, TOP, HIDDEN, PER_NODE, MOST_NODES = 256, 8, 7168, 8, 4
DISPATCH, COMBINE = HIDDEN + HIDDEN // 128 * 4, 2 * HIDDEN  # bytes per token: fp8 with scales, bf16
FITTED = {8, 32, 128}


@dataclass(frozen=True)
class Case:
    """One published figure: seconds for ``bytes`` logical bytes per rank."""

    name: str
    seconds: float
    predicted: float
    fitted: bool = False

    @property
    def error(self) -> float:
        """Predicted over published time, minus one."""
        return self.predicted / self.seconds - 1


def distinct(ranks: int) -> tuple[float, float]:
    """Expected nodes and GPUs that get a token: 8 experts at random among those of its (at most 4) nodes."""
    nodes = max(ranks // PER_NODE, 1)
    chosen = min(nodes, MOST_NODES)
    experts = chosen * EXPERTS // nodes

    def hit(groups: int) -> float:
        each = experts // groups
        return groups * (1 - comb(experts - each, TOP) / comb(experts, TOP))

    return hit(chosen), hit(chosen * min(PER_NODE, ranks))


def seconds(fabric: Topology, ranks: int, algorithm: str, size: float, copies: float = 1.0) -> float:
    """Seconds of an all-to-all of ``size`` bytes per rank."""
    (row,) = measure(fabric, range(ranks), "all_to_all", [size], algorithm=algorithm, copies=copies)
    return row.seconds


def normal(row: dict[str, Any], preset: str) -> list[Case]:
    """Dispatch and combine of the normal kernels, 4,096 tokens per rank."""
    ranks, found = row["ranks"], []
    fabric = load(preset, ranks=ranks)
    nodes, gpus = distinct(ranks)
    for way, per_token in (("dispatch", DISPATCH), ("combine", COMBINE)):
        size = 4096 * gpus * per_token
        if ranks > PER_NODE:
            algorithm = "two_hop" if way == "dispatch" else "two_hop_combine"
            time = seconds(fabric, ranks, algorithm, size, gpus / nodes)
            logical = 4096 * nodes * per_token
        else:
            time, logical = seconds(fabric, ranks, "direct", size), size
        found.append(Case(f"{row['id']} {way}", logical / (row["metrics"][f"{way}_GBps"] * 1e9), time))
    return found


def low_latency(row: dict[str, Any], preset: str, constant: float) -> list[Case]:
    """Dispatch and combine of the low-latency kernels, 128 tokens per rank, a message per expert chosen."""
    found = []
    fabric = load(preset, ranks=row["ranks"], overrides={"tuning": "none"})
    for way in ("dispatch", "combine"):
        size = 128 * TOP * (DISPATCH if way == "dispatch" and row["id"].startswith("deepep") else COMBINE)
        published = row["metrics"].get(f"{way}_us", size / row["metrics"][f"{way}_GBps"] * 1e-3) * 1e-6
        predicted = seconds(fabric, row["ranks"], "direct", size) + constant
        fitted = row["id"].startswith("deepep") and row["ranks"] in FITTED
        found.append(Case(f"{row['id']} {way}", published, predicted, fitted))
    return found


def main() -> None:
    """Print the table."""
    rows = json.loads((Path(__file__).parent / "data" / "deepep.json").read_text())["rows"]
    constant, cases = 0.0, []
    low = [(row, "h800-mpft" if row["id"].startswith("deepep") else "fattree") for row in rows if "_ll_" in row["id"]]
    unfitted = [case for row, preset in low for case in low_latency(row, preset, 0.0) if case.fitted]
    constant = median(case.seconds - case.predicted for case in unfitted)
    for row in rows:
        if "_ll_" not in row["id"]:
            cases += normal(row, "hgx-b200" if row["ranks"] == 8 and "SM100" in row["id"] else _preset(row["id"]))
    for row, preset in low:
        cases += low_latency(row, preset, constant)
    print(f"constant of the low-latency kernels: {constant * 1e6:.1f} us\n")
    print("| figure | published | predicted | error |\n|---|---|---|---|")
    for case in cases:
        note = " (fitted)" if case.fitted else ""
        print(
            f"| {case.name} | {case.seconds * 1e6:,.0f} us | {case.predicted * 1e6:,.0f} us | {case.error:+.1%}{note} |"
        )
    scored = [abs(case.error) for case in cases if not case.fitted]
    print(f"\n{len(scored)} figures scored: median {median(scored):.1%}, worst {max(scored):.1%}")


def _preset(name: str) -> str:
    if "SM100" in name:
        return "dgx-b200-superpod"
    return "h800-mpft" if "_v1_" in name else "fattree"


if __name__ == "__main__":
    main()
