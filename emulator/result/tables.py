"""The columns of a result: what the ops of a program are, when they ran, and what changed over time.

All columns are per class of ranks. Times are in seconds from the start of the step.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

HELD_BY_START = -1  # nothing held the op: it began with the step
HELD_BY_HOST = -2  # the op waited for the host to issue it

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COMMUNICATION = ("collective", "send", "recv")  # kinds of ops


class Labels(msgspec.Struct):
    """A column of text, dictionary encoded: row i reads ``values[codes[i]]``."""

    values: list[str]
    codes: Ints

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]


class OpTable(msgspec.Struct):
    """The ops of one program after lowering, one row per execution, in issue order.

    ``kind`` is compute, collective, send, recv, wait, host_sync, alloc or free; ``time_source`` is measured, modelled,
    scaled or none. Tags that an op does not have are "" or -1. ``deps`` lists rows (CSR: row i has
    ``deps[deps_ptr[i]:deps_ptr[i+1]]``); earlier ops on the same stream are implied and not listed. ``memory_bytes`` is
    what an alloc adds and a free takes away (negative), of a ``category``; both are None where there are no such ops.
    """

    name: Labels
    kind: Labels
    op_class: Labels
    stream: Labels
    phase: Labels
    module: Labels
    group: Labels
    collective: Labels
    algorithm: Labels
    time_source: Labels
    layer: Ints
    microbatch: Ints
    stage: Ints
    bytes: Ints
    flops: Floats
    peer: Labels
    deps_ptr: Ints
    deps: Ints
    category: Labels | None = None
    memory_bytes: Ints | None = None


class Timeline(msgspec.Struct):
    """When the ops of one stream of one rank class ran; columns are aligned, in order of start.

    ``op`` is a row of the class's op table. ``ready``: the op's dependencies were done and the host had issued it.
    ``start``: it also had the stream to itself (a communication op is *posted* then). ``transfer_start``: its last
    participant had arrived (nan for ops without participants). ``held_by``: the row whose end it waited for last, or
    HELD_BY_START or HELD_BY_HOST. ``arrived_last``: the class of the participant that arrived last (-1: not a
    communication op).
    """

    rank_class: int
    stream: str
    op: Ints
    ready: Floats
    start: Floats
    transfer_start: Floats
    end: Floats
    held_by: Ints
    arrived_last: Ints


class CriticalPath(msgspec.Struct):
    """What the step is made of, latest first: stretch i lasts from ``start[i]`` to ``end[i]`` and begins where stretch
    i + 1 ends. It counts ``repeats[i]`` times (1, but where a steady state is shown once): so the lengths add up to
    the step.

    ``op`` is a row of the class's op table. ``what``: compute, transfer, host (the host had not issued the op yet) or
    other (nothing in the result explains it).
    """

    rank_class: Ints
    op: Ints
    what: Labels
    start: Floats
    end: Floats
    repeats: Ints


class LinkLoad(msgspec.Struct):
    """Load of one link (or of each of a class of links) over time: ``rate[i]`` bytes/s from ``time[i]`` on.

    ``transfers[i]`` are on it then (None: not known); ``group_bytes``: what each group's carried in the time shown.
    """

    link: str
    time: Floats
    rate: Floats
    transfers: Ints | None = None
    group_bytes: dict[str, float] = {}


class ComputeRate(msgspec.Struct):
    """How fast each rank of a class computes over time: ``rate[i]`` of its own speed from ``time[i]`` on, the first
    from 0 on; below 1 while communication is resident on the chip.
    """

    rank_class: int
    time: Floats
    rate: Floats

    def work(self, time: Floats) -> Floats:
        """Seconds of work that a chip computing all the time would have done by each of the moments."""
        return self._integral(self.rate, time)

    def lost(self, time: Floats) -> Floats:
        """Seconds of work that it would have lost by then."""
        return self._integral(1 - self.rate, time)

    def moment(self, work: Floats) -> Floats:
        """When so much work would have been done."""
        done = self.work(self.time)
        at = np.searchsorted(done, work, side="right") - 1
        return np.asarray(self.time[at] + (work - done[at]) / self.rate[at])

    def _integral(self, values: Floats, time: Floats) -> Floats:
        """Of ``values`` from the changes of the rate on, up to each of the moments."""
        until = np.concatenate([[0.0], np.cumsum(np.diff(self.time) * values[:-1])])
        at = np.searchsorted(self.time, time, side="right") - 1
        return np.asarray(until[at] + values[at] * (time - self.time[at]))


class MemoryUse(msgspec.Struct):
    """Bytes alive on each rank of a class, by category: ``bytes[i]`` from ``time[i]`` on, the first from 0 on.

    What was alive before the step is in it, under its kind.
    """

    rank_class: int
    category: str
    time: Floats
    bytes: Floats
