"""The trace format ``emu-trace/1``: what one step of a job did, rank by rank, compact by construction.

A trace is like a musical score: ranks share *programs*, programs repeat *blocks*, and parts name each other by their
place on the *mesh*, not by number. The structs mirror the JSON one to one (``docs/trace.md`` is the reference).
Units: seconds, bytes, FLOPs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

SCHEMA = "emu-trace/1"

Kind = Literal["compute", "collective", "send", "recv", "wait", "host_sync", "alloc", "free"]
OpClass = Literal[
    "gemm", "grouped_gemm", "attention", "norm", "rope", "activation", "loss", "optimizer", "pointwise", "copy"
]
Phase = Literal["forward", "backward", "backward_input", "backward_weight", "recompute", "optimizer"]
Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier"
]

DTYPE_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


# Limits that the decoder itself enforces: far beyond any job, and safe to compute with in 64 bits.
MAX_RANKS = 2**24  # of a mesh; more cannot be replayed
Index = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Amount = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]


class PerRank(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A number that differs between ranks: ``values`` is nested by the coordinates on ``axes``, outermost first."""

    axes: list[str]
    values: list[Any]


Number = int | float
RankNumber = int | float | PerRank
# An op or storage named from another place: `id` in the same block instance (or at the same level of a program);
# `[k, id]` in the k-th instance of the same block before this one; `[k, id, block]` in the k-th most recent instance
# of another block (k = 0: the latest), or, with block "", at the program's own level (k = 0). Storages only:
# `[-1, id, block]` in the instance of that block that has this instance's layer, `[-2, id, block]` the next layer's.
Ref = Index | list[Index | str]


class Attention(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Shape of one attention call on this rank: what our own FLOP formula and the cost model need."""

    batch: Count
    heads: Size
    kv_heads: Size
    head_dim: Size
    query_length: Count
    key_length: Count
    causal: bool = False
    backward: bool = False


class Op(
    msgspec.Struct,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    rename={"op_class": "class", "is_async": "async"},
):
    """One thing a rank did. ``id`` is local to the block (or to the program's own level).

    Compute ops carry ``flops``, bytes, and ``shapes`` (of the inputs) with ``dtype``; ``duration`` only if measured.
    ``reads``/``writes`` list the storages touched as ``[reference, bytes]`` (fusion and memory use them).
    Collectives carry bytes of this rank's input and output; ``peer`` of a send or recv is a rank or a mesh offset.
    """

    id: Index
    kind: Kind
    op_class: OpClass | None = None
    name: str = ""
    stream: str = "compute"
    deps: list[Ref] = []
    host_seconds: RankNumber = 0
    # compute
    flops: RankNumber = 0
    bytes_read: RankNumber = 0
    bytes_written: RankNumber = 0
    shapes: list[list[Count]] = []
    dtype: str = ""
    attention: Attention | None = None
    duration: RankNumber | None = None
    reads: list[tuple[Ref, Number]] = []
    writes: list[tuple[Ref, Number]] = []
    sources: list[Index] = []  # ids of the recorded ops that a lowered (fused) op stands for
    # collective
    collective: Collective | None = None
    group: str = ""
    bytes_in: RankNumber = 0
    bytes_out: RankNumber = 0
    reduce_op: str = ""
    root: Index | None = None  # index in the group
    splits_in: list[RankNumber] | PerRank | None = None  # bytes to each member of the group
    splits_out: list[RankNumber] | PerRank | None = None  # bytes from each member
    is_async: bool = False
    # point to point (bytes_in of a send, bytes_out of a recv)
    peer: Index | dict[str, Index] | None = None
    tag: Index = 0
    batch: Index | None = None
    # memory
    storage: Ref | None = None
    bytes: RankNumber = 0
    category: str = ""
    # tags
    phase: Phase | None = None
    module: str = ""
    layer: Count | None = None
    microbatch: Count | None = None
    stage: Count | None = None


class BlockUse(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """``repeat`` instances of a block in a row; ``set`` gives tags per instance as ``"base+step"`` (or an integer)."""

    block: str
    repeat: Index = 1
    set: dict[str, Index | str] = {}


class Program(msgspec.Struct, forbid_unknown_fields=True):
    """What one or many ranks execute, in the order the host issued it."""

    ops: list[Op | BlockUse]


class Mesh(msgspec.Struct, forbid_unknown_fields=True):
    """The ranks as a grid; the last axis varies fastest, so rank = row-major index of the coordinates."""

    axes: list[str]
    shape: list[Index]


class Group(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Communicators: one for every coordinate of the axes left out, or the listed ``ranks``."""

    axes: list[str] | None = None
    ranks: list[list[Index]] | None = None


class RanksByAxis(msgspec.Struct, forbid_unknown_fields=True):
    """Which program a rank runs, by its coordinate on one axis."""

    axis: str
    programs: list[Index]


class Meta(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What was recorded. ``resident`` is the bytes alive before the step, by kind; ``notes`` is free."""

    model: str = ""
    parallel: dict[str, Index] | str = ""
    dtype: str = ""
    params: Amount = 0
    tokens_per_step: Amount = 0
    source: str = ""
    torch: str = ""
    resident: dict[str, RankNumber] = {}
    layers: Count = 0
    sequence: Count = 0
    model_flops: Amount = 0  # of the whole step, all ranks, without recomputation: for MFU
    model_flops_note: str = ""
    notes: dict[str, Index | str] = {}  # what the recorder skipped, guessed or could not carry, counted


class Trace(msgspec.Struct, omit_defaults=True):
    """A whole trace. ``exec`` (verification data) is carried as it stands.

    ``file_programs`` is no part of the format: where reading made one program of several, the number of each in the
    file.
    """

    mesh: Mesh
    programs: list[Program]
    ranks: list[tuple[Index, Index]] | RanksByAxis
    meta: Meta = msgspec.field(default_factory=Meta)
    groups: dict[str, Group] = {}
    blocks: dict[str, list[Op]] = {}
    exec: dict[str, Any] | None = None
    file_programs: list[int] = []

    def program_place(self, program: int) -> str:
        """What a message calls a program: its place in the file."""
        return f"programs[{self.file_programs[program] if self.file_programs else program}]"

    @property
    def world_size(self) -> int:
        """Number of ranks of the mesh."""
        size = 1
        for extent in self.mesh.shape:
            size *= extent
        return size
