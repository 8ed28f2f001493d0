"""The result format ``emu-result/1``: what a replay found, kept in columns.

A result is self-contained: report, view and export read it and nothing else. Ranks that did the same thing at the same
times form a *class*; all columns are per class. Times are in seconds from the start of the step.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from emulator.errors import InputError
from emulator.result.tables import ComputeRate, CriticalPath, LinkLoad, MemoryUse, OpTable, Timeline

SCHEMA = "emu-result/1"


class Partition(msgspec.Struct):
    """Where the step of one rank went (definitions in docs/report.md): the parts add up to the step.

    ``slowed_seconds`` is the part of compute that resident communication caused.
    """

    compute_seconds: float
    exposed_transfer_seconds: float
    exposed_wait_seconds: float
    host_seconds: float
    idle_before_seconds: float
    idle_after_seconds: float
    idle_dependency_seconds: float
    hidden_transfer_seconds: float
    hidden_wait_seconds: float
    communication_seconds: float
    overlap: float | None  # hidden transfer / all transfer; None without any
    sum_minus_step_seconds: float
    slowed_seconds: float = 0.0


class ExposedKind(msgspec.Struct):
    """Exposed time of one rank that communication of one kind (TP, FSDP, PP, ...) cost; kinds add up to the lines."""

    kind: str
    transfer_seconds: float
    wait_seconds: float


class Bubble(msgspec.Struct):
    """The bubble of one pipeline rank by cause; the causes add up to ``RankClass.bubble_seconds``."""

    fill_seconds: float
    drain_seconds: float
    imbalance_seconds: float
    transfer_seconds: float
    host_seconds: float


class Lateness(msgspec.Struct):
    """What the ranks of a class cost others by coming last: rank-seconds of waiting, summed over the waiting ranks.

    ``collectives`` counts those in which a rank of the class came last while somebody waited.
    """

    collectives: int
    waiting_seconds: float
    exposed_seconds: float


class RankClass(msgspec.Struct):
    """Ranks that share one history. ``ranks`` is written as ranges ("0-7,16"); ``program`` is an op table.

    ``compute_phases`` splits the compute line by phase ("" where an op has none), ``slowed_phases`` the part of it that
    resident communication caused.
    """

    rank_class: int
    count: int
    ranks: str
    program: int
    flops: float
    partition: Partition | None = None
    bubble_seconds: float | None = None  # pipeline ranks only
    bubble: Bubble | None = None
    compute_phases: dict[str, float] = {}
    slowed_phases: dict[str, float] = {}
    exposed: list[ExposedKind] = []
    lateness: Lateness | None = None


class WhatIf(msgspec.Struct):
    """One change, and the length of the step with it, from a run of its own.

    ``change``: ``free`` (communication of the group ``target`` takes no time), ``faster`` (links of the level
    ``target`` have ``factor`` times the bandwidth), ``even`` (every op takes all ranks as long as the median rank),
    ``compute`` (compute is ``factor`` times as fast), ``alone`` (communication slows no compute), ``place`` (ranks are
    placed by the order of axes ``target``) or ``host`` (the host issues every op at once).
    """

    change: str
    target: str
    factor: float
    step_seconds: float


class CollectiveUse(msgspec.Struct):
    """All executions of one kind of communication in one group, on one rank class, of one size.

    ``seconds`` is the mean from last arrival to end, ``alone_seconds`` the same algorithm on the idle topology. The
    rest is lost to other streams of the group's ranks, to other ranks, and to links slower than the topology has them.
    """

    collective: str
    group: str
    group_size: int
    rank_class: int
    count: int
    bytes: int
    dtype: str
    algorithm: str
    seconds: float
    alone_seconds: float
    wait_seconds: float
    algbw_bytes_per_second: float | None
    busbw_bytes_per_second: float | None
    congestion: float | None
    own_rank_seconds: float = 0.0
    other_ranks_seconds: float = 0.0
    slower_links_seconds: float = 0.0


class LinkUse(msgspec.Struct):
    """What one link (or ``count`` links with the same history) carried."""

    link: str
    level: str
    count: int
    capacity_bytes_per_second: float  # mean over the step where it changes
    bytes: float
    utilisation: float  # of capacity x step
    groups: list[str]


class TraceInfo(msgspec.Struct):
    """What the trace says of itself."""

    file: str
    model: str
    parallel: dict[str, int] | str
    dtype: str
    source: str
    params: float
    tokens_per_step: float
    model_flops: float
    model_flops_note: str
    mesh_axes: list[str]
    mesh_shape: list[int]
    resident: dict[str, float] = {}  # bytes alive before the step by kind, on the rank that holds most


class TopologyInfo(msgspec.Struct):
    """What the job ran on, and what the preset built for it."""

    name: str
    built: str
    accelerators: int
    links: int
    links_carrying_traffic: int
    routing: str
    overrides: dict[str, str]


class DeviceInfo(msgspec.Struct):
    """Which device model timed the compute, and whether its figures are sustained or burst."""

    name: str
    peak_flops: float
    peak_dtype: str
    memory_bytes: float
    model: str
    lowering: str
    kernels_recorded: int
    kernels_timed: int


class Folding(msgspec.Struct):
    """How many classes stand for how many ranks, and what broke the symmetry."""

    enabled: bool
    method: str  # how the classes were found: closed form, colour refinement or none
    rank_classes: int
    ranks: int
    group_classes: int
    groups: int
    link_classes: int
    links: int
    rounds: int
    op_executions: int
    op_executions_represented: int


class Omitted(msgspec.Struct):
    """A steady state that is shown once: at ``at_seconds`` of the time shown, ``count`` periods were left out.

    What the shown period before it holds happened ``count`` times more; what comes after is later by their length.
    """

    at_seconds: float
    period_seconds: float
    count: int


class Engine(msgspec.Struct):
    """How the answer was found; the only part that differs between identical runs."""

    events: int = 0
    solves: int = 0
    cpu_seconds: float = 0.0


class Result(msgspec.Struct, tag_field="schema", tag=SCHEMA):
    """One replay. ``timeline_file`` is set by the writer where the columns lie in a file beside the JSON."""

    step_seconds: float
    world_size: int
    trace: TraceInfo
    topology: TopologyInfo
    device: DeviceInfo
    time_sources: dict[str, int]
    ranks: list[RankClass]
    collectives: list[CollectiveUse]
    links: list[LinkUse]
    folding: Folding
    programs: list[OpTable]
    timeline: list[Timeline]
    warnings: list[str]
    engine: Engine = msgspec.field(default_factory=Engine)
    mfu: float | None = None
    tokens_per_second: float | None = None
    timeline_file: str | None = None
    omitted: list[Omitted] = []
    path: CriticalPath | None = msgspec.field(name="critical_path", default=None)
    what_if: list[WhatIf] = []
    link_loads: list[LinkLoad] = []
    memory: list[MemoryUse] = []
    compute_rates: list[ComputeRate] = []  # none where nothing can slow what computes

    @property
    def shown_seconds(self) -> float:
        """Length of the time that the timeline shows: the step without the periods left out of it."""
        return self.step_seconds - sum(jump.period_seconds * jump.count for jump in self.omitted)

    def spans(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every span as columns of a table, see ``emulator.result.columns.span_columns``."""
        from emulator.result.columns import span_columns  # noqa: PLC0415  (it needs this module)

        return span_columns(self)

    def critical_path(self) -> dict[str, np.ndarray[Any, Any]]:
        """The critical path as columns of a table, first stretch first; ``end - start`` adds up to the step."""
        from emulator.result.columns import path_columns  # noqa: PLC0415

        return path_columns(self)

    def partition(self) -> dict[str, Partition]:
        """The partition of every rank class, by its ranks ("0-7,16")."""
        return {ranks.ranks: ranks.partition for ranks in self.ranks if ranks.partition is not None}

    def bubble(self) -> dict[str, Bubble]:
        """The bubble by cause of every rank class that sends or receives, by its ranks."""
        return {ranks.ranks: ranks.bubble for ranks in self.ranks if ranks.bubble is not None}

    def to_pandas(self) -> Any:
        """Every span as a pandas DataFrame. Raises InputError where pandas is not installed."""
        try:
            pandas = import_module("pandas")  # an extra: nothing else needs it
        except ImportError:
            raise InputError("pandas is not installed", remedy="pip install pandas") from None
        return pandas.DataFrame(self.spans())
