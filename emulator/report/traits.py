"""What the report needs to know of an op table again and again, worked out once for all rank classes that share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.report.kinds import kind_of_group, pipeline_messages
from emulator.result.tables import COMMUNICATION, Ints, OpTable

Mask = NDArray[np.bool_]

FORWARD = ("forward",)
BACKWARD = ("backward", "backward_input", "backward_weight", "recompute")


@dataclass(frozen=True)
class Traits:
    """Masks and codes over the rows of an op table; lists where single rows are looked up."""

    computes: Mask
    collectives: Mask
    communicates: Mask
    receives: list[bool]
    passes: Mask  # waits and host synchronisations: they only hand on what they wait for
    synchronises: Mask
    messages: Mask  # sends and receives between pipeline stages
    messages_listed: list[bool]
    pipelined: Mask  # compute of a forward or backward phase, or of a numbered microbatch
    units: list[tuple[str, int]]  # direction (forward, backward, or another phase) and microbatch
    unit_codes: Ints  # a number for each of them
    dependants: Ints  # the row that each entry of ``deps`` belongs to
    kinds: list[str]  # kinds of communication, in order of ``kind_codes``
    kind_codes: Ints

    @property
    def uses_peers(self) -> bool:
        """Whether a rank that runs this sends to or receives from another pipeline stage."""
        return bool(self.messages.any())


def traits_of(table: OpTable) -> Traits:
    """Work out the traits of one op table."""
    computes, messages = is_kind(table, ("compute",)), pipeline_messages(table)
    phases = table.phase.values
    directions = [_direction(phase) for phase in phases]
    numbered = sorted(set(directions))
    direction = np.array([numbered.index(name) for name in directions], dtype=np.int64)[table.phase.codes]
    staged = np.array([phase in (*FORWARD, *BACKWARD) for phase in phases], dtype=np.bool_)[table.phase.codes]
    pairs = [(group, kind) for group in table.group.values for kind in table.kind.values]
    named = [kind_of_group(*pair) for pair in pairs]
    kinds = sorted(set(named))
    of_pair = np.array([kinds.index(name) for name in named], dtype=np.int64)
    return Traits(
        computes=computes,
        collectives=is_kind(table, ("collective",)),
        communicates=is_kind(table, COMMUNICATION),
        receives=is_kind(table, ("recv",)).tolist(),
        passes=is_kind(table, ("wait", "host_sync")),
        synchronises=is_kind(table, ("host_sync",)),
        messages=messages,
        messages_listed=messages.tolist(),
        pipelined=computes & (staged | (table.microbatch >= 0)),
        units=list(zip((numbered[code] for code in direction.tolist()), table.microbatch.tolist(), strict=True)),
        unit_codes=table.microbatch * len(numbered) + direction,
        dependants=np.repeat(np.arange(len(computes)), np.diff(table.deps_ptr)),
        kinds=kinds,
        kind_codes=of_pair[table.group.codes * len(table.kind.values) + table.kind.codes],
    )


def is_kind(table: OpTable, kinds: Sequence[str]) -> Mask:
    """Rows of one of the kinds."""
    return np.array([kind in kinds for kind in table.kind.values], dtype=np.bool_)[table.kind.codes]


def _direction(phase: str) -> str:
    return "forward" if phase in FORWARD else "backward" if phase in BACKWARD else phase
