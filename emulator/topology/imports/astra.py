"""ASTRA-sim's network files (analytical backend): dimensions, innermost first, as levels of ours.

Read in its code: its GB is 2^30 bytes; latency is per hop, in ns, and a Switch is two hops (so a message through one
waits twice the number in the file: that is our latency per link, two links); rings go both ways; dimension d joins the
ranks that differ in coordinate d only, so every rank has links of its own in every dimension (``joins: rails``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from emulator.errors import InputError
from emulator.topology.document import convert, read_yaml
from emulator.topology.spec import Count

_GB = 2.0**30  # bytes
_KINDS: dict[str, dict[str, Any]] = {
    "Ring": {"kind": "torus", "axes": 1},
    "FullyConnected": {"kind": "full_mesh"},
    "Switch": {"kind": "switch"},
}


class _Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topology: list[Literal["Ring", "FullyConnected", "Switch"]]
    npus_count: list[Count]
    bandwidth: list[float]
    latency: list[float]


def levels_of_astra_sim(path: Path, source: str) -> dict[str, Any]:
    """The document of a file of levels (``spec.TopologyFile``) that means the same. Raises InputError."""
    network: _Network = convert(read_yaml(path, source), _Network, source=source)
    dimensions = len(network.topology)
    for key in ("npus_count", "bandwidth", "latency"):
        if len(getattr(network, key)) != dimensions or not dimensions:
            raise InputError(
                f"{len(getattr(network, key))} values for {dimensions} dimensions", source=source, place=key
            )
    levels: dict[str, dict[str, Any]] = {}
    total = 1
    for i, kind in enumerate(network.topology):
        count = network.npus_count[i]
        total *= count
        own: dict[str, Any] = {"shape": [count]} if kind == "Ring" else {"size": count}
        levels[f"dim{i}"] = _KINDS[kind] | own | {
            "bandwidth": network.bandwidth[i] * _GB,
            "latency": network.latency[i] * 1e-9,
            "links": f"{kind} {i}",
            "joins": "rails" if i else "accelerators",
        }  # fmt: skip
    return {
        "name": path.stem,
        "description": "network of ASTRA-sim",
        "called": "npu",
        "accelerators": total,
        "levels": levels,
        "sources": {"file": f"{source}, in the format of ASTRA-sim's analytical network (GB = 2^30 bytes)"},
    }
