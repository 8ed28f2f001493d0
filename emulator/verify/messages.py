"""Carrying out recorded communication over gloo: what a c10d or functional op did, on the tensors it is given now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from emulator.trace.mesh import communicators, peer_of_rank
from emulator.trace.schema import Op, Trace
from emulator.verify.recorded import Call

Tensor = Any
Work = Any


def make_groups(trace: Trace) -> dict[tuple[str, int], Any]:
    """A process group for every communicator of the trace, by (name, number); every rank has to call this."""
    groups = {}
    for name in sorted(trace.groups):
        who = communicators(trace, name)
        for number in range(len(who.sizes)):
            members = who.ranks[who.ptr[number] : who.ptr[number + 1]].tolist()
            groups[name, number] = dist.new_group(members)
    return groups


class Messenger:
    """Issues the communication ops of one rank."""

    def __init__(self, trace: Trace, rank: int) -> None:
        self._trace = trace
        self._rank = rank
        self._groups = make_groups(trace)
        self._number = {name: int(communicators(trace, name).of_rank[rank]) for name in trace.groups}

    def group(self, op: Op) -> Any:
        """The process group of a communication op."""
        return self._groups[op.group, self._number[op.group]]

    def issue(self, op: Op, call: Call, args: Sequence[Any]) -> tuple[list[Work], list[Tensor]]:
        """Start an op on tensors: works to wait for, and the tensors it returns (functional ops)."""
        namespace, name, overload = call.call.split(".")
        group = self.group(op)
        if namespace == "_c10d_functional":
            return self._functional(name, overload, args, group)
        if name in ("send", "recv_"):
            peer = int(peer_of_rank(self._trace, op.peer if op.peer is not None else 0)[self._rank])
            call_it = dist.isend if name == "send" else dist.irecv
            return [call_it(tensor, peer, group=group, tag=op.tag) for tensor in args[0]], []
        how = {"group": group, "async_op": True}
        return _C10D[name](args, _reduce_op(op.reduce_op), how), []

    def _functional(self, name: str, overload: str, args: Sequence[Any], group: Any) -> tuple[list[Work], list[Tensor]]:
        function = getattr(getattr(torch.ops._c10d_functional, name), overload)
        where = [argument.name for argument in function._schema.arguments].index("group_name")
        given = list(args)
        given[where] = group.group_name
        out = function(*given)
        results = list(out) if isinstance(out, list | tuple) else [out]
        return [_Pending(result) for result in results], results


class _Pending:
    """A functional collective's result, waited for like a work."""

    def __init__(self, result: Tensor) -> None:
        self._result = result

    def wait(self) -> None:
        torch.ops._c10d_functional.wait_tensor(self._result)


def _reduce_op(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper()) if name else dist.ReduceOp.SUM


def _each(call: Any, *lists: Sequence[Any], **how: Any) -> list[Work]:
    return [call(*tensors, **how) for tensors in zip(*lists, strict=True)]


# The works of each c10d op, from its arguments (in the order of torch's schema), its reduce op, and how to issue.
_C10D: dict[str, Callable[[Sequence[Any], Any, dict[str, Any]], list[Work]]] = {
    "allreduce_": lambda a, op, how: _each(dist.all_reduce, a[0], op=op, **how),
    "allreduce_coalesced_": lambda a, op, how: _each(dist.all_reduce, a[0], op=op, **how),
    "broadcast_": lambda a, _, how: _each(dist.broadcast, a[0], group_src=a[2], **how),
    "reduce_": lambda a, op, how: _each(dist.reduce, a[0], op=op, group_dst=a[3], **how),
    "allgather_": lambda a, _, how: _each(dist.all_gather, a[0], a[1], **how),
    "allgather_into_tensor_coalesced_": lambda a, _, how: _each(dist.all_gather_single, a[0], a[1], **how),
    "_allgather_base_": lambda a, _, how: [dist.all_gather_single(a[0], a[1], **how)],
    "reduce_scatter_": lambda a, op, how: _each(dist.reduce_scatter, a[0], a[1], op=op, **how),
    "reduce_scatter_tensor_coalesced_": lambda a, op, how: _each(dist.reduce_scatter_single, a[0], a[1], op=op, **how),
    "_reduce_scatter_base_": lambda a, op, how: [dist.reduce_scatter_single(a[0], a[1], op=op, **how)],
    "alltoall_base_": lambda a, _, how: [dist.all_to_all_single(a[0], a[1], a[3], a[4], **how)],
    "alltoall_": lambda a, _, how: [dist.all_to_all(a[0], a[1], **how)],
    "gather_": lambda a, _, how: [dist.gather(a[1][0], a[0][0] if a[0] else None, group_dst=a[3], **how)],
    "scatter_": lambda a, _, how: [dist.scatter(a[0][0], a[1][0] if a[1] else None, group_src=a[3], **how)],
    "barrier": lambda _a, _op, how: [dist.barrier(**how)],
}
