"""The layers of decoder language models, written as for one process: nothing here knows how a model is parallelised.

Shapes: B sequences, T tokens each, D model width, H heads, K key/value heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; ``sequence`` and ``dtype`` are only defaults."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    sequence: int = 8192
    dtype: str = "bfloat16"

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Rotary(nn.Module):
    """Rotary position embedding of queries and keys, in the rotate-half form (arXiv 2104.09864)."""

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(q, cos, sin), rotate(k, cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x`` (B, heads, T, head dim) by the angles of its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rotary_table(
    positions: Tensor, head_dim: int, dtype: torch.dtype, base: float = 500_000.0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles at ``positions`` (T), each (T, head dim)."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(positions.double(), frequencies).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Grouped-query attention of tokens to themselves and those before: q (B, H, T, d), k and v (B, K, T, d)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):
    """Causal grouped-query attention. ``attend`` is the attention itself, so that others may take its place."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.wq = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.wk = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.wv = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)
        self.rotary = Rotary()
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = self.rotary(q, k, cos, sin)
        return self.wo(self.attend(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, ffn: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, ffn, bias=False)
        self.w2 = nn.Linear(ffn, dim, bias=False)
        self.w3 = nn.Linear(dim, ffn, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One decoder layer, pre-norm."""

    def __init__(self, dim: int, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = attention
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


@dataclass(frozen=True)
class Part:
    """Which part of a model to build: a row of layers, with the embedding before and the head after, if it has them."""

    layers: range
    first: bool = True
    last: bool = True


class Decoder(nn.Module):
    """Token ids (B, T), or activations (B, T, D) of the part before, to logits (B, T, V), or to the part after."""

    def __init__(
        self,
        dim: int,
        vocab: int,
        part: Part,
        make_layer: Callable[[int], nn.Module],
        rotary: tuple[Tensor, Tensor],
        seed: int,
    ) -> None:
        """``make_layer`` builds layer i. Weights depend on the seed and their place only, not on what else is built."""
        super().__init__()
        torch.manual_seed(seed * 10_007)
        self.tok_embeddings = nn.Embedding(vocab, dim) if part.first else None
        layers = {}
        for i in part.layers:
            torch.manual_seed(seed * 10_007 + 2 + i)
            layers[str(i)] = make_layer(i)
        self.layers = nn.ModuleDict(layers)
        torch.manual_seed(seed * 10_007 + 1)
        self.norm = nn.RMSNorm(dim, eps=1e-5) if part.last else None
        self.output = nn.Linear(dim, vocab, bias=False) if part.last else None
        self.register_buffer("cos", rotary[0], persistent=False)
        self.register_buffer("sin", rotary[1], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return x if self.output is None else self.output(self.norm(x))
