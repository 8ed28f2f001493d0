"""Llama-3 training step, parallelised by torch's own ``fully_shard`` and ``parallelize_module``.

The model does not know how it is parallelised; ``build`` puts it on a mesh with the axes ``fsdp`` and ``tp``. The same
functions serve recording, fake worlds, verification and the unparallelised reference (``build(config, None)``), and

    torchrun --nproc-per-node 4 workloads/llama.py --model tiny --fsdp 2 --tp 2

just trains. Shapes: B sequences, T tokens each, D model width, H heads, K key/value heads, V vocabulary.
"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from emulator.cost.attention import attention_flops
from emulator.errors import InputError
from emulator.trace.schema import Attention as AttentionShape


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; ``sequence`` and ``dtype`` are only defaults. Llama 3: arXiv 2407.21783, table 3."""

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


MODELS = {
    "tiny": Shape(dim=32, layers=4, heads=4, kv_heads=2, ffn=96, vocab=128, sequence=32, dtype="float32"),
    "8b": Shape(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256),
    "70b": Shape(dim=8192, layers=80, heads=64, kv_heads=8, ffn=28672, vocab=128256),
    "405b": Shape(dim=16384, layers=126, heads=128, kv_heads=8, ffn=53248, vocab=128256),
}


# ---- the model


class Rotary(nn.Module):
    """Rotary position embedding of queries and keys, in the rotate-half form (arXiv 2104.09864)."""

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(q, cos, sin), rotate(k, cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x`` (B, heads, T, head dim) by the angles of its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rotary_table(length: int, head_dim: int, base: float = 500_000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each (T, head dim)."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies).repeat(1, 2)
    dtype = torch.get_default_dtype()
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Attention(nn.Module):
    """Causal grouped-query attention; under tensor parallelism each rank holds whole heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.wq = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.wk = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.wv = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)
        self.rotary = Rotary()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = self.rotary(q, k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.ffn, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One decoder layer, pre-norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Token ids (B, T) to logits (B, T, V)."""

    def __init__(self, shape: Shape, layers: int, sequence: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleList(Block(shape) for _ in range(layers))
        self.norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.output = nn.Linear(shape.dim, shape.vocab, bias=False)
        cos, sin = rotary_table(sequence, shape.head_dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


# ---- how it is parallelised


def apply_tp(model: Llama, mesh: DeviceMesh, *, sequence_parallel: bool, sharded_loss: bool) -> None:
    """Tensor parallelism by torch's plans: whole heads and feed-forward columns per rank.

    ``PrepareModuleInput`` makes the input of attention (and feed-forward) one DTensor for its three (two) matmuls, so
    that its gradient is summed once: per layer 2 + 2 collectives instead of 2 + 5.
    """
    between = Shard(1) if sequence_parallel else Replicate()  # activations between the matmul groups
    column, row = ColwiseParallel, RowwiseParallel
    plan: dict[str, Any] = {
        "attention": PrepareModuleInput(
            input_layouts=(between, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.wq": column(),
        "attention.wk": column(),
        "attention.wv": column(),
        "attention.wo": row(output_layouts=between),
        "feed_forward": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": column(),
        "feed_forward.w3": column(),
        "feed_forward.w2": row(output_layouts=between),
    }
    ends: dict[str, Any] = {
        "tok_embeddings": row(input_layouts=Replicate(), output_layouts=between),
        "output": column(
            input_layouts=between,
            output_layouts=Shard(-1) if sharded_loss else Replicate(),
            use_local_output=not sharded_loss,
        ),
    }
    if sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        ends |= {"norm": SequenceParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    parallelize_module(model, mesh, ends)


def apply_fsdp(model: Llama, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    """Fully sharded data parallelism: each layer is one unit, the rest belongs to the root."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


# ---- the workload contract


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this workload; the parsed namespace is the ``config`` of the other functions."""
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--model", choices=sorted(MODELS), default="tiny")
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument("--sequence", type=int, help="tokens per sequence (8192; tiny: 32)")
    parser.add_argument("--batch", type=int, default=1, help="sequences per data-parallel rank")
    parser.add_argument("--fsdp", type=int, default=1, metavar="N", help="fully sharded data parallel over N ranks")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor parallel over N ranks")
    parser.add_argument("--sp", action=switch, default=True, help="sequence parallelism beside --tp")
    parser.add_argument("--loss-parallel", action=switch, help="loss on sharded logits (default: with --tp and --sp)")
    parser.add_argument("--dtype", help="of the parameters (bfloat16; tiny: float32)")
    parser.add_argument("--reduce-dtype", help="of the gradient reduction (float32; float64 with float64 parameters)")
    parser.add_argument("--seed", type=int, default=0)


def shape_of(config: argparse.Namespace) -> Shape:
    """Sizes of the configured model."""
    return MODELS[config.model]


def sequence_of(config: argparse.Namespace) -> int:
    """Tokens per sequence, T."""
    return int(config.sequence or shape_of(config).sequence)


def layers_of(config: argparse.Namespace) -> int:
    """Number of decoder layers, L."""
    return int(config.layers or shape_of(config).layers)


def sharded_loss(config: argparse.Namespace) -> bool:
    """Whether the loss is computed on logits sharded over the vocabulary."""
    return config.tp > 1 and (config.sp if config.loss_parallel is None else config.loss_parallel)


def dtype_of(name: str, option: str) -> torch.dtype:
    """The torch dtype of that name; InputError if it is no floating-point type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"no floating-point dtype {name!r}", source=option)
    return dtype


def dtypes(config: argparse.Namespace) -> tuple[torch.dtype, torch.dtype]:
    """Dtype of the parameters and of the gradient reduction."""
    parameters = dtype_of(config.dtype or shape_of(config).dtype, "--dtype")
    widest = "float64" if parameters == torch.float64 else "float32"
    return parameters, dtype_of(config.reduce_dtype or widest, "--reduce-dtype")


def mesh_axes(config: argparse.Namespace) -> dict[str, int]:
    """Extent of every mesh axis, slowest first. Raises InputError if the model cannot be laid out on it."""
    shape, fsdp, tp = shape_of(config), config.fsdp, config.tp
    for option in ("fsdp", "tp", "batch", "layers", "sequence"):
        if (value := getattr(config, option)) is not None and value < 1:
            raise InputError(f"must be at least 1, is {value}", source=f"--{option}")
    sharded = {"heads": shape.heads, "key/value heads": shape.kv_heads, "vocabulary": shape.vocab, "ffn": shape.ffn}
    if config.sp:
        sharded["sequence"] = sequence_of(config)
    for what, size in sharded.items():
        if size % tp:
            raise InputError(f"{size} {what} of {config.model} do not divide by {tp}", source="--tp")
    for what, rows in {
        "model width": shape.dim,
        "query rows": shape.dim // tp,
        "key/value rows": shape.kv_heads * shape.head_dim // tp,
        "ffn rows": shape.ffn // tp,
        "vocabulary rows": shape.vocab // tp,
    }.items():
        if rows % fsdp:
            raise InputError(f"{rows} {what} per rank of {config.model} do not divide by {fsdp}", source="--fsdp")
    dtypes(config)
    return {"fsdp": fsdp, "tp": tp}


def parameters_of(config: argparse.Namespace) -> int:
    """Number of parameters of the whole model, input embedding included."""
    s = shape_of(config)
    layer = s.dim * s.head_dim * (2 * s.heads + 2 * s.kv_heads) + 3 * s.dim * s.ffn + 2 * s.dim
    return layers_of(config) * layer + 2 * s.vocab * s.dim + s.dim


def describe(config: argparse.Namespace) -> dict[str, Any]:
    """What the trace says about the job; FLOPs are those of the whole step on all ranks (6NT + causal attention)."""
    s, length, layers = shape_of(config), sequence_of(config), layers_of(config)
    sequences = config.batch * config.fsdp
    tokens = sequences * length
    counted = parameters_of(config) - s.vocab * s.dim
    attention = sum(
        attention_flops(
            AttentionShape(
                batch=sequences, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, query_length=length,
                key_length=length, causal=True, backward=backward,
            )
        )
        for backward in (False, True)
    )  # fmt: skip
    return {
        "model": f"llama3-{config.model}",
        "parallel": mesh_axes(config)
        | {"sp": int(config.sp and config.tp > 1), "loss_parallel": int(sharded_loss(config))},
        "dtype": config.dtype or s.dtype,
        "params": parameters_of(config),
        "tokens_per_step": tokens,
        "layers": layers,
        "sequence": length,
        "model_flops": 6 * counted * tokens + layers * attention,
        "model_flops_note": "6NT, N without the input embedding, + causal attention with a backward of 2.5 forwards",
    }


@dataclass(frozen=True)
class Job:
    """What ``train_step`` needs: the model on its mesh, the optimizer, and this rank's part of the batch."""

    model: Llama
    optimizer: torch.optim.Optimizer
    sharded_loss: bool
    data_rank: int
    data_ranks: int


def build(config: argparse.Namespace, mesh: DeviceMesh | None) -> Job:
    """The model, parallelised on ``mesh`` (axes ``fsdp`` and ``tp``; None: one process), and AdamW."""
    mesh_axes(config)
    dtype, reduce_dtype = dtypes(config)
    torch.manual_seed(config.seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = Llama(shape_of(config), layers_of(config), sequence_of(config))
    finally:
        torch.set_default_dtype(default)
    if mesh is not None and config.tp > 1:
        apply_tp(model, mesh["tp"], sequence_parallel=config.sp, sharded_loss=sharded_loss(config))
    if mesh is not None and config.fsdp > 1:
        apply_fsdp(model, mesh["fsdp"], MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype))
    alike: dict[Any, list[nn.Parameter]] = {}  # a fused optimizer takes parameters of one mesh at a time
    for parameter in model.parameters():
        alike.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": group} for group in alike.values()], lr=1e-3, fused=True)
    return Job(
        model=model,
        optimizer=optimizer,
        sharded_loss=mesh is not None and sharded_loss(config),
        data_rank=mesh["fsdp"].get_local_rank() if mesh is not None else 0,
        data_ranks=config.fsdp if mesh is not None else 1,
    )


def batch(config: argparse.Namespace, step: int) -> Tensor:
    """Token ids of the whole job's step, (B, T + 1): the same on every rank."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    size = (config.batch * config.fsdp, sequence_of(config) + 1)
    return torch.randint(0, shape_of(config).vocab, size, generator=generator)


def train_step(job: Job, tokens: Tensor) -> Tensor:
    """Forward, backward and optimizer on this rank's sequences. Returns this rank's mean loss, detached."""
    mine = tokens.chunk(job.data_ranks)[job.data_rank]
    with loss_parallel() if job.sharded_loss else contextlib.nullcontext():
        logits = job.model(mine[:, :-1]).flatten(0, 1)
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        loss = F.cross_entropy(logits, mine[:, 1:].flatten())
        loss.backward()
    job.optimizer.step()
    job.optimizer.zero_grad()
    return loss.detach()


def main() -> None:
    """Train for a few steps under torchrun (or alone) and print the losses."""
    parser = argparse.ArgumentParser(description="Llama-3 training steps on CPU processes (gloo).")
    add_arguments(parser)
    parser.add_argument("--steps", type=int, default=5)
    config = parser.parse_args()
    axes = mesh_axes(config)
    parallel = config.fsdp * config.tp > 1
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes)) if parallel else None
    job = build(config, mesh)
    for step in range(config.steps):
        loss = train_step(job, batch(config, step))
        value = loss.full_tensor() if isinstance(loss, DTensor) else loss
        if mesh is None or mesh.get_rank() == 0:
            print(f"step {step}: loss {value.item():.6f}")
    if mesh is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
