"""A full mesh: a cable between every pair of accelerators, every route one hop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.errors import InputError
from emulator.topology.graph import Facts, Ints, LinkTable, NodeNames, Routes, check_size
from emulator.topology.spec import FullMesh


@dataclass(frozen=True)
class FullMeshRouter:
    """Link ``src * (n - 1) + rank of dst among the others`` joins src to dst."""

    size: int
    latency: float

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        link = src * (self.size - 1) + dst - (dst > src)
        flows = len(src)
        return Routes(np.arange(flows + 1), link, np.ones(flows), np.full(flows, self.latency))


def build(name: str, level: FullMesh, accelerators: int, *, called: str) -> dict[str, Any]:
    """The fields of a Topology for a full mesh. Raises InputError (without the file's name)."""
    n = level.size or accelerators
    if n < accelerators:
        raise InputError(
            f"the mesh holds {n:,} accelerators, the job needs {accelerators:,}", place=f"levels.{name}.size"
        )
    check_size(n * (n - 1), name)
    src, other = np.divmod(np.arange(n * (n - 1)), max(n - 1, 1))
    table = LinkTable()
    table.add(level.links or name, src, other + (other >= src), level.capacity, level.latency)
    return table.columns() | {
        "accelerators": n,
        "node_names": NodeNames([(called, (n,))]),
        "level_names": tuple(table.level_names),
        "switches": np.empty(0, dtype=np.int64),
        "domain": np.zeros(n, dtype=np.int64),
        "router": FullMeshRouter(n, float(level.latency)),
        "forwards": True,
        "facts": Facts(min(n - 1, 1), n // 2 * (n - n // 2) * level.capacity, "any halves"),
        "built": f"full mesh of {n:,} {called}{'s' * (n > 1)}",
    }
