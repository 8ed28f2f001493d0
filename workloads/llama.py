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
    training.add_model_arguments(parser, MODELS, 8192)
    parallel.add_arguments(parser)


def mesh_axes(config: argparse.Namespace) -> dict[str, int]:
    """Extent of every mesh axis, slowest first. Raises InputError if the model cannot be laid out on it."""
    axes = parallel.mesh_axes(config)
    shape, tp, cp = MODELS[config.model], config.tp, config.cp
    check = partial(parallel.check_divides, model=config.model)
    for what, size in {
        "heads": shape.heads, "key/value heads": shape.kv_heads, "vocabulary": shape.vocab, "ffn": shape.ffn
    }.items():  # fmt: skip
        check(what, size, tp, "--tp")
    if cp > 1:
        check("tokens (two chunks per rank)", training.sequence_of(config, shape), 2 * cp, "--cp")
    if config.sp:
        check("sequence", training.sequence_of(config, shape) // cp, tp, "--tp")
    sharding = parallel.product(config, parallel.SHARDING)
    for what, rows in {
        "model width": shape.dim,
        "query rows": shape.dim // tp,
        "key/value rows": shape.kv_heads * shape.head_dim // tp,
        "ffn rows": shape.ffn // tp,
    }.items():
        check(f"{what} per rank", rows, sharding, "--fsdp" if config.fsdp > 1 else "--cp")
    parallel.check_vocabulary(shape.vocab // tp, sharding, config)
    pipeline.check(config, training.layers_of(config, shape))
    parallel.dtypes(config, shape.dtype)
    return axes


def roles(config: argparse.Namespace) -> tuple[str, ...]:
    """Axes along which ranks do different work."""
    return parallel.roles(config)


def parameters_of(config: argparse.Namespace) -> int:
    """Number of parameters of the whole model, input embedding included."""
    s = MODELS[config.model]
    layer = s.dim * s.head_dim * (2 * s.heads + 2 * s.kv_heads) + 3 * s.dim * s.ffn + 2 * s.dim
    return training.layers_of(config, s) * layer + 2 * s.vocab * s.dim + s.dim


def describe(config: argparse.Namespace) -> dict[str, Any]:
    """What the trace says about the job."""
    params = parameters_of(config)
    return training.describe(config, MODELS[config.model], params=params, met=params) | {
        "model": f"llama3-{config.model}",
        "model_flops_note": "6NT, N without the input embedding, + causal attention with a backward of 2.5 forwards",
    }


def build(config: argparse.Namespace, mesh: DeviceMesh | None) -> training.Job:
    """This rank's part of the model on ``mesh`` (None: all of it, in one process), and AdamW."""
    mesh_axes(config)
    shape = MODELS[config.model]
    model = training.Model(
        width=shape.dim,
        vocabulary=shape.vocab,
        layers=training.layers_of(config, shape),
        sequence=training.sequence_of(config, shape),
        dtype=shape.dtype,
        build=lambda part, positions, dtype: Llama(shape, part, positions, dtype, config.seed),
        apply_tp=lambda part, tp: parallel.apply_tp(
            part, tp, config, parallel.feed_forward_plan(parallel.layout_between(config))
        ),
    )
    return training.build_job(config, mesh, model)


def batch(config: argparse.Namespace, step: int) -> Tensor:
    """Token ids of the whole job's step, (B, T + 1): the same on every rank."""
    return training.make_batch(config, step, MODELS[config.model])


def train_step(job: training.Job, tokens: Tensor) -> Tensor | None:
    """Forward, backward and optimizer on this rank's part. Its mean loss, detached; None on ranks without a loss."""
    return training.train_step(job, tokens)


if __name__ == "__main__":
    training.run_alone(sys.modules[__name__])
