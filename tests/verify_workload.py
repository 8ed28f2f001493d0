"""A workload for the tests of verification: four ways to be parallel, each written out by hand in a few lines.

``--break NAME`` makes the parallel job wrong in one way that its own tests could miss (the reference stays right).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

WIDTH = 8
KINDS = ("data", "experts", "ring", "pipeline")
MICROBATCHES = 4


def add_arguments(parser):
    parser.add_argument("--kind", choices=KINDS, default="data")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--break", dest="broken", default="")
    parser.add_argument("--dtype", default="float32")


def mesh_axes(config):
    return {"ranks": config.ranks}


class Experts(nn.Module):
    """Top-1 routing; expert e lives on rank e of ``group``, or all of them here."""

    def __init__(self, count, rank, broken=""):
        super().__init__()
        self.router = nn.Linear(WIDTH, count, bias=False)
        experts = [nn.Linear(WIDTH, WIDTH) for _ in range(count)]
        self.experts = nn.ModuleDict({str(e): x for e, x in enumerate(experts) if rank is None or e == rank})
        self.count, self.rank, self.broken = count, rank, broken

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        sizes = torch.bincount(chosen, minlength=self.count)
        if self.rank is None:
            parts = x[order].split(sizes.tolist())
            done = torch.cat([self.experts[str(e)](part) for e, part in enumerate(parts)])
        else:
            if self.broken == "expert on the wrong rank":
                order = ((chosen + 1) % self.count).argsort(stable=True)
                sizes = sizes.roll(1)
            theirs = torch.empty_like(sizes)
            dist.all_to_all_single(theirs, sizes)
            mine, here = sizes.tolist(), theirs.tolist()
            group = dist.group.WORLD
            arrived = all_to_all_single_autograd(x[order], here, mine, group)
            made = self.experts[str(self.rank)](arrived)
            done = all_to_all_single_autograd(made, mine, here, group)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return done[back] * weight[:, None]


class RingAttention(torch.autograd.Function):
    """Causal attention of one block of queries over all blocks, keys and values passed around a ring."""

    @staticmethod
    def forward(ctx, q, k, v, rank, ranks, broken):
        out, norm = torch.zeros_like(q), torch.full((*q.shape[:-1], 1), float("-inf"), dtype=q.dtype)
        for step in range(ranks):
            source = (rank - step) % ranks
            scores = masked(q, k, source, rank, broken)
            if scores is not None:
                part = scores.logsumexp(-1, keepdim=True)
                both = torch.logaddexp(norm, part)
                out = out * (norm - both).exp() + (scores - both).exp() @ v
                norm = both
            k, v = around([k, v], rank, ranks)
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.place = rank, ranks, broken
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, norm = ctx.saved_tensors
        rank, ranks, broken = ctx.place
        common = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for step in range(ranks):
            scores = masked(q, k, (rank - step) % ranks, rank, broken)
            if scores is not None:
                p = (scores - norm).exp()
                ds = p * (grad @ v.mT - common) * WIDTH**-0.5
                dv, dq, dk = dv + p.mT @ grad, dq + ds @ k, dk + ds.mT @ q
            k, v, dk, dv = around([k, v, dk, dv], rank, ranks)
        return dq, dk, dv, None, None, None


def masked(q, k, source, rank, broken):
    """Scores against one block of keys; None for blocks that lie in the future."""
    diagonal = rank - 1 if broken == "causal mask off by one block" else rank
    if source > rank:
        return None
    scores = q @ k.mT * WIDTH**-0.5
    return scores if source != diagonal else scores + torch.full_like(scores, float("-inf")).triu(1)


def around(tensors, rank, ranks):
    """Pass tensors to the next rank and get those of the one before."""
    if ranks == 1:
        return tensors
    got = [torch.empty_like(t) for t in tensors]
    sends = [dist.P2POp(dist.isend, t.contiguous(), (rank + 1) % ranks) for t in tensors]
    for work in dist.batch_isend_irecv(sends + [dist.P2POp(dist.irecv, t, (rank - 1) % ranks) for t in got]):
        work.wait()
    return got


class Attention(nn.Module):
    """One head."""

    def __init__(self, rank, ranks, broken):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.place = rank or 0, ranks if rank is not None else 1, broken

    def forward(self, x: Tensor) -> Tensor:
        return RingAttention.apply(self.q(x), self.k(x), self.v(x), *self.place)


@dataclass
class Job:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    config: object
    rank: int | None


def build(config, mesh):
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config.dtype))
    rank = None if mesh is None else mesh.get_rank()
    if config.kind == "experts":
        model = Experts(config.ranks, rank, config.broken)
    elif config.kind == "ring":
        model = Attention(rank, config.ranks, config.broken)
    else:
        model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))
        if config.kind == "pipeline" and rank is not None:
            model = nn.ModuleDict({str(i): m for i, m in enumerate(model) if (i == 2) == bool(rank)})
    torch.set_default_dtype(default)
    lr = 2e-3 if rank and config.broken == "learning rate of one rank" else 1e-3
    return Job(model, torch.optim.AdamW(model.parameters(), lr=lr), config, rank)


def batch(config, step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(48, 2 * WIDTH, generator=generator, dtype=torch.float64).to(getattr(torch, config.dtype))


def train_step(job, data):
    config, ranks = job.config, job.config.ranks
    x, y = data[:, :WIDTH], data[:, WIDTH:]
    if job.rank is not None and config.kind == "pipeline":
        loss = pipeline(job, x, y)
    else:
        if job.rank is not None:
            shard = 0 if config.broken == "same data on two ranks" else job.rank
            x, y = x.chunk(ranks)[shard], y.chunk(ranks)[shard]
        loss = F.mse_loss(job.model(x), y)
        loss.backward()
        if job.rank is not None:
            average(job)
    job.optimizer.step()
    job.optimizer.zero_grad()
    return None if loss is None else loss.detach()


def average(job):
    """Gradients of the mean loss of all ranks; those of an expert are there already and only divided."""
    config, ranks = job.config, job.config.ranks
    divisor = ranks - 1 if config.broken == "wrong divisor" else ranks
    pending, summed = [], []
    for number, (name, parameter) in enumerate(job.model.named_parameters()):
        gradient = parameter.grad.bfloat16() if config.broken == "sum in bfloat16" else parameter.grad
        summed.append(gradient)
        skipped = config.broken == "one gradient not summed" and number == 1
        if not name.startswith("experts") and not skipped:
            pending.append(dist.all_reduce(gradient, async_op=True))
    for work in pending:
        work.wait()
    for parameter, gradient in zip(job.model.parameters(), summed, strict=True):
        parameter.grad = gradient.to(parameter.dtype) / divisor


def pipeline(job, x, y):
    """Two stages, all forwards, then all backwards."""
    parts = list(zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True))
    if job.rank == 0:
        made = [torch.tanh(job.model["0"](part)) for part, _ in parts]
        sent = [dist.isend(out.detach(), 1, tag=m) for m, out in enumerate(made)]
        for m, out in enumerate(made):
            gradient = torch.empty_like(out)
            dist.irecv(gradient, 1, tag=MICROBATCHES + m).wait()
            out.backward(gradient)
        for work in sent:
            work.wait()
        return None
    boxes = [torch.empty(len(part), 2 * WIDTH, dtype=x.dtype) for part, _ in parts]
    arriving = [dist.irecv(box, 0, tag=m) for m, box in enumerate(boxes)]
    total, returned = torch.zeros((), dtype=x.dtype), []
    swapped = job.config.broken == "two microbatches swapped"
    for m in range(MICROBATCHES):
        arriving[m].wait()
        target = parts[1 - m if swapped and m < 2 else m][1]
        middle = boxes[m].requires_grad_()
        loss = F.mse_loss(job.model["2"](middle), target) / MICROBATCHES
        loss.backward()
        returned.append(dist.isend(middle.grad, 0, tag=MICROBATCHES + m))
        total += loss.detach()
    for work in returned:
        work.wait()
    return total
