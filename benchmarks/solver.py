"""CPU time of one max-min solve: random pairs on a 1,024-host fat tree, single paths.

    python benchmarks/solver.py

The tree has 3 levels of 16-port switches: 16 pods of 8 edge and 8 aggregation switches, 64 cores, 6,144 directed links.
"""

from __future__ import annotations

import platform
import time

import numpy as np

from emulator.network import maxmin

PORTS = 16
HALF = PORTS // 2
HOSTS = PORTS * HALF * HALF
TARGET_MS = {10_000: 25.0}


def fat_tree_flows(flows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CSR (ptr, link, weight) of flows between random hosts, each up to a random core as far as it must."""
    src = rng.integers(0, HOSTS, flows)
    dst = (src + rng.integers(1, HOSTS, flows)) % HOSTS
    aggregation, core = rng.integers(0, HALF, (2, flows))
    edge_src, edge_dst, pod_src, pod_dst = src // HALF, dst // HALF, src // HALF**2, dst // HALF**2
    level = HOSTS  # directed links of one direction of one level: hosts, edge-aggregation and aggregation-core alike
    columns = [
        (src, True),
        (level + dst, True),
        (2 * level + edge_src * HALF + aggregation, edge_src != edge_dst),
        (3 * level + edge_dst * HALF + aggregation, edge_src != edge_dst),
        (4 * level + (pod_src * HALF + aggregation) * HALF + core, pod_src != pod_dst),
        (5 * level + (pod_dst * HALF + aggregation) * HALF + core, pod_src != pod_dst),
    ]
    links = np.stack([link for link, _ in columns], axis=1)
    used = np.stack([np.broadcast_to(use, flows) for _, use in columns], axis=1)
    ptr = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    return ptr, links[used], np.ones(ptr[-1])


def main() -> None:
    """Print one line per number of flows: best CPU milliseconds of several solves."""
    print(
        f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}, numpy {np.__version__}"
    )
    rng = np.random.default_rng(1)
    capacity = np.full(6 * HOSTS, 12.5e9)
    begin = time.process_time()
    for flows in (10, 30, 100, 300, 1_000, 3_000, 10_000):
        ptr, link, weight = fat_tree_flows(flows, rng)
        repeats = max(5, 2_000 // flows)
        best = float("inf")
        for _ in range(repeats):
            start = time.process_time()
            maxmin.solve(capacity, ptr, link, weight)
            best = min(best, time.process_time() - start)
        target = f"  (target {TARGET_MS[flows]:.0f})" if flows in TARGET_MS else ""
        print(f"{flows:7,d} flows {len(link):8,d} entries {1e3 * best:9.3f} ms{target}")
    print(f"{time.process_time() - begin:.1f} CPU s in all")


if __name__ == "__main__":
    main()
