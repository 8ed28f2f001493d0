"""Kinds of communication (TP, FSDP, PP, EP, CP, ...), from what groups are called."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.result.tables import OpTable

KINDS = {
    "tp": "TP", "tensor": "TP", "fsdp": "FSDP", "dp_shard": "FSDP", "dp": "DP", "ddp": "DP", "dp_replicate": "DP",
    "pp": "PP", "pipe": "PP", "p2p": "PP", "ep": "EP", "expert": "EP", "cp": "CP", "context": "CP", "sp": "SP",
    "sequence": "SP",
}  # fmt: skip
"""What groups of these names are for; other groups are kinds of their own, under their own name."""


def kind_of_group(group: str, kind: str = "collective") -> str:
    """The kind of communication that the name of a group and a kind of op stand for."""
    if not group:
        return "PP" if kind in ("send", "recv") else "other"
    return KINDS.get(group.lower(), group)


def pipeline_messages(table: OpTable) -> NDArray[np.bool_]:
    """Sends and receives between pipeline stages: not those of a ring inside another group (context parallel, say)."""
    messages = np.array([kind in ("send", "recv") for kind in table.kind.values], dtype=np.bool_)[table.kind.codes]
    others = set(KINDS.values()) - {"PP"}
    between = np.array([kind_of_group(group, "send") not in others for group in table.group.values], dtype=np.bool_)
    return np.asarray(messages & between[table.group.codes])
