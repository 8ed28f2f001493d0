"""Mixture-of-experts layers: a router, experts that live on different ranks, and the way of tokens to them and back.

``group`` is the ranks over which experts are spread (None: all are here). The layer computes the same on any number of
ranks: no token is dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from layers import FeedForward
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd

Counts = list[list[int]]  # tokens from each source rank to each expert
Oracle = Callable[[int, int], Counts]  # (tokens per rank, ranks) -> counts: a router that is known beforehand


class Router(nn.Module):
    """Scores of every expert for each token, and the ``top`` best. ``scores`` is softmax or sigmoid."""

    def __init__(self, dim: int, experts: int, top: int, scores: str) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.top = top
        self.scores = scores

    def forward(self, x: Tensor, planned: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens (N, D) to weights and experts, each (N, top); ``planned`` replaces the choice of experts."""
        logits = self.gate(x)
        scores = logits.softmax(-1) if self.scores == "softmax" else logits.sigmoid()
        weights, chosen = scores.topk(self.top, -1)
        if planned is not None:
            weights, chosen = scores.gather(1, planned), planned
        return weights / weights.sum(-1, keepdim=True), chosen


class Experts(nn.Module):
    """Feed-forward experts (SwiGLU) with stacked weights."""

    def __init__(self, experts: int, dim: int, ffn: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(experts, dim, ffn) * dim**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, ffn, dim) * ffn**-0.5)
        self.w3 = nn.Parameter(torch.randn(experts, dim, ffn) * dim**-0.5)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Tokens in the order of the experts, ``counts`` for each."""
        parts = x.split(list(counts))
        return torch.cat([F.silu(t @ self.w1[i]) * (t @ self.w3[i]) @ self.w2[i] for i, t in enumerate(parts)])


class MixtureOfExperts(nn.Module):
    """``top`` of ``experts`` for each token, and a part that all tokens share (width ``shared``, 0 for none)."""

    def __init__(self, dim: int, ffn: int, experts: int, top: int, *, shared: int = 0, scores: str = "softmax") -> None:
        super().__init__()
        self.router = Router(dim, experts, top, scores)
        self.experts = Experts(experts, dim, ffn)
        self.shared = FeedForward(dim, shared) if shared else None
        self.count = experts
        self.top = top
        self.group: dist.ProcessGroup | None = None
        self.oracle: Oracle | None = None

    def spread(self, group: dist.ProcessGroup) -> None:
        """Keep this rank's share of the experts."""
        self.group = group
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        for name, weight in list(self.experts.named_parameters()):
            setattr(self.experts, name, nn.Parameter(weight.detach().chunk(ranks)[rank].clone()))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        plan = self._plan(len(tokens))
        weights, chosen = self.router(tokens, plan[1] if plan else None)
        places = chosen.flatten()
        order = places.argsort(stable=True)  # (token, choice) pairs by expert
        sources = order // self.top
        counts = torch.zeros(self.count, dtype=torch.int64).scatter_add_(0, places, torch.ones_like(places))
        done = self._visit(tokens[sources], counts, plan[0] if plan else None)
        done = done * weights.flatten()[order].unsqueeze(1)
        out = torch.zeros_like(tokens).index_add(0, sources, done)
        return out.view(x.shape) + self.shared(x) if self.shared is not None else out.view(x.shape)

    def _plan(self, tokens: int) -> tuple[Counts, Tensor] | None:
        """What the oracle says: counts of all ranks of the group, and the experts (N, top) of this rank's tokens."""
        if self.oracle is None:
            return None
        rank, ranks = (dist.get_rank(self.group), dist.get_world_size(self.group)) if self.group else (0, 1)
        counts = self.oracle(tokens, ranks)
        experts = torch.arange(self.count).repeat_interleave(torch.tensor(counts[rank]), output_size=tokens * self.top)
        return counts, experts.view(
            self.top, tokens
        ).T.contiguous()  # a row of one expert is no longer than N: no repeats

    def _visit(self, tokens: Tensor, counts: Tensor, known: Counts | None) -> Tensor:
        """Bring ``tokens``, in the order of their experts, to these and what comes of them back."""
        if self.group is None:
            return self.experts(tokens, to_host(counts, known[0] if known else None))
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        here = self.count // ranks
        coming = all_to_all_single(counts, None, None, self.group).view(ranks, here)
        both = torch.stack((counts.view(ranks, here), coming))
        plan = None
        if known is not None:
            mine = [known[rank][i * here : (i + 1) * here] for i in range(ranks)]
            plan = [mine, [known[i][rank * here : (rank + 1) * here] for i in range(ranks)]]
        leaving, arriving = to_host(both, plan)
        sent, received = [sum(row) for row in leaving], [sum(row) for row in arriving]
        visitors = all_to_all_single_autograd(tokens, received, sent, self.group)
        expert = torch.arange(here).repeat(ranks).repeat_interleave(coming.flatten(), output_size=sum(received))
        order = expert.argsort(stable=True)  # they came by source rank
        done = self.experts(visitors[order], [sum(column) for column in zip(*arriving, strict=True)])
        done = torch.zeros_like(done).index_copy(0, order, done)
        return all_to_all_single_autograd(done, sent, received, self.group)


def to_host(counts: Tensor, known: list[int] | Counts | None) -> list[int] | Counts:
    """Values of a tensor, for which the host has to wait; in a fake world they are those that an oracle knows."""
    if known is not None:
        counts.known_values = known
    return counts.tolist()


# ---- oracles


def balanced(experts: int, top: int) -> Oracle:
    """Every expert gets the same number of tokens from every rank, to within one."""

    def counts(tokens: int, ranks: int) -> Counts:
        return [share_out([1.0] * experts, tokens * top, tokens)] * ranks

    return counts


def skewed(experts: int, top: int, seed: int, exponent: float = 1.0) -> Oracle:
    """The n-th most popular expert gets a share of 1/n^exponent; which is popular follows from the seed."""
    order = random.Random(seed).sample(range(experts), experts)
    weights = [(1.0 + place) ** -exponent for place in order]

    def counts(tokens: int, ranks: int) -> Counts:
        return [share_out(weights, tokens * top, tokens)] * ranks

    return counts


def share_out(weights: Sequence[float], total: int, most: int) -> list[int]:
    """Whole numbers in proportion to ``weights`` that sum to ``total``, none above ``most``."""
    found = [0] * len(weights)
    left, open_ = total, list(range(len(weights)))
    while left:
        scale = left / sum(weights[i] for i in open_)
        gains = {i: min(most - found[i], int(weights[i] * scale)) for i in open_}
        if not any(gains.values()):  # less than one each: the largest first
            gains = dict.fromkeys(sorted(open_, key=lambda i: -weights[i])[:left], 1)
        for i, gain in gains.items():
            found[i] += gain
        left = total - sum(found)
        open_ = [i for i in open_ if found[i] < most]
    return found
