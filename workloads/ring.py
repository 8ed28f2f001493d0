"""Context parallelism: attention over a ring of ranks that each hold a part of the sequence (arXiv 2310.01889).

A causal sequence is dealt out in zigzag: of 2n chunks rank r of n holds chunks r and 2n-1-r, so that every rank has the
same work at every step. Keys and values travel around the ring, one rank further per step, while the part that is here
is attended to; partial results are merged by their log-sum-exp. On the way back keys, values and their gradients do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def zigzag(length: int, rank: int, ranks: int) -> Tensor:
    """Positions in the sequence of the tokens that ``rank`` holds: its early chunk, then its late one."""
    chunks = torch.arange(length).chunk(2 * ranks)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


def ring_attention(group: dist.ProcessGroup) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Causal attention of this rank's queries to the keys of all ranks of ``group``, as a function of (q, k, v)."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _Ring.apply(q.contiguous(), k.contiguous(), v.contiguous(), group)

    return attend


def _pass_on(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[list[Tensor], list[dist.Work]]:
    """Start to send ``tensors`` to the next rank and to receive the same from the one before."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    received = [torch.empty_like(tensor) for tensor in tensors]
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    messages = [dist.P2POp(dist.isend, tensor, group=group, group_peer=after) for tensor in tensors]
    messages += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=before) for tensor in received]
    return received, dist.batch_isend_irecv(messages)


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _parts(step: int, rank: int, length: int) -> tuple[slice, slice]:
    """Which local queries attend to which of the keys that are here at a step, beyond the first (which is causal):
    keys of an earlier rank's early chunk are seen by all, those of a later rank by the late half of the queries."""
    half = length // 2
    return (slice(None), slice(0, half)) if step <= rank else (slice(half, None), slice(None))


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        here, coming, works = (k, v), (k, v), []
        out = total = None
        for step in range(ranks):
            if step + 1 < ranks:
                coming, works = _pass_on(here, group)
            if step == 0:
                out, total = _attention(q, *here, 0.0, True)
            else:
                mine, theirs = _parts(step, rank, q.shape[2])
                keys, values = (x[:, :, theirs] for x in here)
                more, its = _attention(q[:, :, mine], keys, values, 0.0, False)
                _merge(out[:, :, mine], total[:, :, mine], more, its)
            _wait(works)
            here, works = tuple(coming), []
        ctx.save_for_backward(q, k, v, out, total)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, total = ctx.saved_tensors
        group, grad = ctx.group, grad.contiguous()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        here, coming, works = (k, v), (k, v), []
        grads, moving = [], []  # gradients of keys and values on their way around: each rank adds its part to them
        for step in range(ranks):
            if step + 1 < ranks:
                coming, works = _pass_on(here, group)
            mine, theirs = _parts(step, rank, q.shape[2]) if step else (slice(None), slice(None))
            dq, *dkv = _attention_backward(
                grad[:, :, mine], q[:, :, mine], here[0][:, :, theirs], here[1][:, :, theirs],
                out[:, :, mine], total[:, :, mine], 0.0, step == 0,
            )  # fmt: skip
            _wait(moving)
            if step == 0:
                grad_q, grads = dq.contiguous(), [x.contiguous() for x in dkv]
            else:
                grad_q[:, :, mine] += dq
                for kept, new in zip(grads, dkv, strict=True):
                    kept[:, :, theirs] += new
            _wait(works)
            here, works, sent = tuple(coming), [], grads
            grads, moving = _pass_on(sent, group)  # after as many steps as there are ranks they are home
        _wait(moving)
        return grad_q, grads[0], grads[1], None


def _merge(out: Tensor, total: Tensor, more: Tensor, its: Tensor) -> None:
    """Merge ``more`` with log-sum-exp ``its`` (..., T) into ``out`` and ``total``, in place."""
    weight = torch.sigmoid(its - total).unsqueeze(-1).to(out.dtype)
    out.add_(weight * (more - out))
    total.copy_(torch.logaddexp(total, its))
