"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): all from small latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from layers import Rotary, causal_attention
from torch import Tensor, nn


@dataclass(frozen=True)
class LatentShape:
    """Ranks of the latents and parts of a head; the defaults are DeepSeek-V3's."""

    query_rank: int = 1536
    key_value_rank: int = 512
    plain: int = 128  # of a head's queries and keys, without position
    rotary: int = 64  # ... and with
    value: int = 128

    @property
    def head_dim(self) -> int:
        return self.plain + self.rotary

    def parameters(self, dim: int, heads: int) -> int:
        """Weights of one attention, norms included."""
        queries = dim * self.query_rank + self.query_rank + self.query_rank * heads * self.head_dim
        keys = dim * (self.key_value_rank + self.rotary) + self.key_value_rank
        return queries + keys + self.key_value_rank * heads * (self.plain + self.value) + heads * self.value * dim


class LatentAttention(nn.Module):
    """Causal attention whose values are padded to the width of the keys, as fused kernels want them."""

    def __init__(self, dim: int, heads: int, shape: LatentShape) -> None:
        super().__init__()
        self.heads, self.shape = heads, shape
        self.wq_a = nn.Linear(dim, shape.query_rank, bias=False)
        self.q_norm = nn.RMSNorm(shape.query_rank, eps=1e-6)
        self.wq_b = nn.Linear(shape.query_rank, heads * shape.head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, shape.key_value_rank + shape.rotary, bias=False)
        self.kv_norm = nn.RMSNorm(shape.key_value_rank, eps=1e-6)
        self.wkv_b = nn.Linear(shape.key_value_rank, heads * (shape.plain + shape.value), bias=False)
        self.wo = nn.Linear(heads * shape.value, dim, bias=False)
        self.rotary = Rotary()
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s = self.shape
        q = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (self.heads, s.head_dim)).transpose(1, 2)
        latent, k_turned = self.wkv_a(x).split([s.key_value_rank, s.rotary], -1)
        kv = self.wkv_b(self.kv_norm(latent)).unflatten(-1, (self.heads, s.plain + s.value)).transpose(1, 2)
        (q_plain, q_turned), (k_plain, v) = q.split([s.plain, s.rotary], -1), kv.split([s.plain, s.value], -1)
        q_turned, k_turned = self.rotary(q_turned, k_turned.unsqueeze(1), cos, sin)
        q = torch.cat((q_plain, q_turned), -1)
        k = torch.cat((k_plain, k_turned.expand(-1, self.heads, -1, -1)), -1)
        out = self.attend(q, k, F.pad(v, (0, s.head_dim - s.value)))[..., : s.value]
        return self.wo(out.transpose(1, 2).flatten(2))
