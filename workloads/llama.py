"""Llama-3 training step, parallelised by torch's own tools on a mesh of up to five axes.

``build`` puts the model on the mesh; the same functions serve recording, fake worlds, verification and the
unparallelised reference (``build(config, None)``), and

    torchrun --nproc-per-node 4 workloads/llama.py --model tiny --fsdp 2 --tp 2

just trains. ``layers.py`` has the layers, ``parallel.py`` and ``pipeline.py`` what is done to them, ``training.py`` the
step.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import parallel
import pipeline
import torch
import training
from layers import Attention, Block, Decoder, FeedForward, Part, Shape, rotary_table
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from emulator.cost.attention import attention_flops
from emulator.trace.schema import Attention as AttentionShape

MODELS = {  # Llama 3: arXiv 2407.21783, table 3
    "tiny": Shape(dim=32, layers=4, heads=4, kv_heads=2, ffn=96, vocab=128, sequence=32, dtype="float32"),
    "8b": Shape(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256),
    "70b": Shape(dim=8192, layers=80, heads=64, kv_heads=8, ffn=28672, vocab=128256),
    "405b": Shape(dim=16384, layers=126, heads=128, kv_heads=8, ffn=53248, vocab=128256),
}


class Llama(Decoder):
    """Llama 3, or a part of it."""

    def __init__(self, shape: Shape, part: Part, positions: Tensor, dtype: torch.dtype, seed: int) -> None:
        rotary = rotary_table(positions, shape.head_dim, dtype)
        super().__init__(shape.dim, shape.vocab, part, partial(make_layer, shape), rotary, seed)


def make_layer(shape: Shape, _index: int) -> Block:
    """One decoder layer."""
    return Block(shape.dim, Attention(shape), FeedForward(shape.dim, shape.ffn))


# ---- the workload contract


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this workload; the parsed namespace is the ``config`` of the other functions."""
    parser.add_argument("--model", choices=sorted(MODELS), default="tiny")
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument("--sequence", type=int, help="tokens per sequence (8192; tiny: 32)")
    parallel.add_arguments(parser)


def shape_of(config: argparse.Namespace) -> Shape:
    """Sizes of the configured model."""
    return MODELS[config.model]


def sequence_of(config: argparse.Namespace) -> int:
    """Tokens per sequence, T."""
    return int(config.sequence or shape_of(config).sequence)


def layers_of(config: argparse.Namespace) -> int:
    """Number of decoder layers, L."""
    return int(config.layers or shape_of(config).layers)


def mesh_axes(config: argparse.Namespace) -> dict[str, int]:
    """Extent of every mesh axis, slowest first. Raises InputError if the model cannot be laid out on it."""
    axes = parallel.mesh_axes(config)
    shape, tp, cp = shape_of(config), config.tp, config.cp
    check = partial(parallel.check_divides, model=config.model)
    for what, size in {
        "heads": shape.heads, "key/value heads": shape.kv_heads, "vocabulary": shape.vocab, "ffn": shape.ffn
    }.items():  # fmt: skip
        check(what, size, tp, "--tp")
    if cp > 1:
        check("tokens (two chunks per rank)", sequence_of(config), 2 * cp, "--cp")
    if config.sp:
        check("sequence", sequence_of(config) // cp, tp, "--tp")
    sharding = parallel.product(config, parallel.SHARDING)
    for what, rows in {
        "model width": shape.dim,
        "query rows": shape.dim // tp,
        "key/value rows": shape.kv_heads * shape.head_dim // tp,
        "ffn rows": shape.ffn // tp,
    }.items():
        check(f"{what} per rank", rows, sharding, "--fsdp" if config.fsdp > 1 else "--cp")
    parallel.check_vocabulary(shape.vocab // tp, sharding, config)
    pipeline.check(config, layers_of(config))
    parallel.dtypes(config, shape.dtype)
    return axes


def roles(config: argparse.Namespace) -> tuple[str, ...]:
    """Axes along which ranks do different work."""
    return parallel.roles(config)


def parameters_of(config: argparse.Namespace) -> int:
    """Number of parameters of the whole model, input embedding included."""
    s = shape_of(config)
    layer = s.dim * s.head_dim * (2 * s.heads + 2 * s.kv_heads) + 3 * s.dim * s.ffn + 2 * s.dim
    return layers_of(config) * layer + 2 * s.vocab * s.dim + s.dim


def describe(config: argparse.Namespace) -> dict[str, Any]:
    """What the trace says about the job; FLOPs are those of the whole step on all ranks (6NT + causal attention)."""
    s, length, layers = shape_of(config), sequence_of(config), layers_of(config)
    sequences = config.batch * parallel.microbatches(config) * parallel.data_ranks(config)
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
    return training.describe(config, s.dtype, s.vocab) | {
        "model": f"llama3-{config.model}",
        "params": parameters_of(config),
        "tokens_per_step": tokens,
        "layers": layers,
        "sequence": length,
        "model_flops": 6 * counted * tokens + layers * attention,
        "model_flops_note": "6NT, N without the input embedding, + causal attention with a backward of 2.5 forwards",
    }


def build(config: argparse.Namespace, mesh: DeviceMesh | None) -> training.Job:
    """This rank's part of the model on ``mesh`` (None: all of it, in one process), and AdamW."""
    mesh_axes(config)
    shape = shape_of(config)
    model = training.Model(
        width=shape.dim,
        vocabulary=shape.vocab,
        layers=layers_of(config),
        sequence=sequence_of(config),
        dtype=shape.dtype,
        build=lambda part, positions, dtype: Llama(shape, part, positions, dtype, config.seed),
        apply_tp=lambda part, tp: parallel.apply_tp(
            part, tp, config, parallel.feed_forward_plan(parallel.layout_between(config))
        ),
    )
    return training.build_job(config, mesh, model)


def batch(config: argparse.Namespace, step: int) -> Tensor:
    """Token ids of the whole job's step, (B, T + 1): the same on every rank."""
    return training.make_batch(config, step, sequence_of(config), shape_of(config).vocab)


def train_step(job: training.Job, tokens: Tensor) -> Tensor | None:
    """Forward, backward and optimizer on this rank's part. Its mean loss, detached; None on ranks without a loss."""
    return training.train_step(job, tokens)


if __name__ == "__main__":
    training.run_alone(sys.modules[__name__])
