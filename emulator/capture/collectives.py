"""Reading communication ops of torch: what they do, on which bytes, in which group.

Two families reach the dispatcher: ``c10d`` (``dist.all_reduce``, FSDP2, pipelining), which returns a work object, and
``_c10d_functional`` (DTensor, so tensor and sequence parallelism), whose results are waited on by ``wait_tensor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from emulator.capture import accessors
from emulator.capture.classify import dtype_name, nbytes, tensors
from emulator.capture.tape import Tape
from emulator.trace.schema import Collective, Op

# op name -> what it is, the arguments it fills, the arguments it reads
C10D: dict[str, tuple[Collective, tuple[str, ...], tuple[str, ...]]] = {
    "allreduce_": ("all_reduce", ("tensors",), ("tensors",)),
    "allreduce_coalesced_": ("all_reduce", ("tensors",), ("tensors",)),
    "allgather_": ("all_gather", ("output_tensors",), ("input_tensors",)),
    "allgather_coalesced_": ("all_gather", ("output_lists",), ("input_list",)),
    "allgather_into_tensor_coalesced_": ("all_gather", ("outputs",), ("inputs",)),
    "_allgather_base_": ("all_gather", ("output_tensor",), ("input_tensor",)),
    "reduce_scatter_": ("reduce_scatter", ("output_tensors",), ("input_tensors",)),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", ("outputs",), ("inputs",)),
    "_reduce_scatter_base_": ("reduce_scatter", ("output_tensor",), ("input_tensor",)),
    "alltoall_": ("all_to_all", ("output_tensors",), ("input_tensors",)),
    "alltoall_base_": ("all_to_all", ("output",), ("input",)),
    "broadcast_": ("broadcast", ("tensors",), ("tensors",)),
    "reduce_": ("reduce", ("tensors",), ("tensors",)),
    "gather_": ("gather", ("output_tensors",), ("input_tensors",)),
    "scatter_": ("scatter", ("output_tensors",), ("input_tensors",)),
    "barrier": ("barrier", (), ()),
}
FUNCTIONAL: dict[str, Collective] = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})


@dataclass(frozen=True)
class Message:
    """One communication op as called: the op without its place, its tensors, and the ranks of its group."""

    op: Op
    ranks: tuple[int, ...]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    is_async: bool


def named_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call by name, defaults filled in."""
    schema = func._schema.arguments
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return defaults | dict(zip((a.name for a in schema), args, strict=False)) | kwargs


def read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Message | None:
    """What a ``c10d`` or ``_c10d_functional`` op communicates; None if nothing (``wait_tensor``, internal checks)."""
    name = func._overloadpacket.__name__
    given = named_arguments(func, args, kwargs)
    if func.namespace == "_c10d_functional":
        return _functional(name, given, out)
    if name in ("send", "recv_"):
        return _point_to_point(name, given)
    return _c10d(name, given)


def _c10d(name: str, given: dict[str, Any]) -> Message | None:
    if name not in C10D:
        return None
    kind, fills, takes = C10D[name]
    ranks = accessors.group_ranks(given["process_group"])
    inputs = tensors([given[key] for key in takes])
    outputs = tensors([given[key] for key in fills])
    op = _collective(f"c10d.{name}", kind, inputs, outputs)
    if kind in REDUCING:
        op.reduce_op = accessors.reduce_op(given["reduce_op"])
    if "root_rank" in given:
        op.root = given["root_rank"]
    if name == "alltoall_base_":
        _split(op, given["input_split_sizes"], given["output_split_sizes"], inputs[0], outputs[0], len(ranks))
    elif name == "alltoall_":
        op.splits_in, op.splits_out = [nbytes(t) for t in inputs], [nbytes(t) for t in outputs]
    return Message(op, ranks, inputs, outputs, bool(given["async_op"]))


def _functional(name: str, given: dict[str, Any], out: Any) -> Message | None:
    if name not in FUNCTIONAL:
        return None
    kind = FUNCTIONAL[name]
    ranks = accessors.group_ranks(given["group_name"])
    inputs, outputs = tensors(given.get("input", given.get("inputs"))), tensors(out)
    op = _collective(f"c10d_functional.{name}", kind, inputs, outputs)
    if kind in REDUCING:
        op.reduce_op = accessors.reduce_op(given["reduce_op"])
    if kind == "broadcast":
        op.root = given["src"]
    if kind == "all_to_all":
        _split(op, given["input_split_sizes"], given["output_split_sizes"], inputs[0], outputs[0], len(ranks))
    return Message(op, ranks, inputs, outputs, is_async=True)


def _point_to_point(name: str, given: dict[str, Any]) -> Message:
    ranks = accessors.group_ranks(given["process_group"])
    buffers = tensors(given["tensors"])
    size = sum(nbytes(t) for t in buffers)
    sends = name == "send"
    op = Op(
        id=0,
        kind="send" if sends else "recv",
        name=f"c10d.{name}",
        dtype=dtype_name(buffers[0].dtype),
        bytes_in=size if sends else 0,
        bytes_out=0 if sends else size,
        peer=ranks[given["dst" if sends else "src"]],
        tag=given["tag"],
        is_async=True,
    )
    return Message(op, ranks, buffers if sends else [], [] if sends else buffers, is_async=True)


def _collective(name: str, kind: Collective, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> Op:
    dtypes = [t.dtype for t in (*inputs, *outputs)]
    return Op(
        id=0,
        kind="collective",
        name=name,
        collective=kind,
        dtype=dtype_name(dtypes[0]) if dtypes else "uint8",
        bytes_in=sum(nbytes(t) for t in inputs),
        bytes_out=sum(nbytes(t) for t in outputs),
    )


def _split(
    op: Op, sent: list[int], received: list[int], source: torch.Tensor, target: torch.Tensor, members: int
) -> None:
    """Say which part goes where in an all-to-all, unless all parts are equal."""
    parts = _splits(sent, source, members), _splits(received, target, members)
    if len({*parts[0], *parts[1]}) > 1:
        op.splits_in, op.splits_out = parts


def _splits(sizes: list[int], tensor: torch.Tensor, members: int) -> list[Any]:
    """Bytes per member of an all-to-all: torch gives rows of the tensor, or nothing for equal parts."""
    if not sizes:
        return [nbytes(tensor) // members] * members
    row = nbytes(tensor) // max(1, tensor.shape[0])
    return [size * row for size in sizes]


def touches(tape: Tape, message: Message) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]:
    """Storages a communication op reads, writes, and all of them.

    c10d schemas do not say what is written. For the order of ops every tensor of a collective counts as written; what
    is sent is read, and may be read by others meanwhile.
    """
    reads = [(tape.storages.id_of(t)[0], nbytes(t)) for t in message.inputs]
    writes = [(tape.storages.id_of(t)[0], nbytes(t)) for t in message.outputs]
    touched = writes if message.op.kind == "send" else (*reads, *writes)
    return reads, writes, [storage for storage, _ in touched]
