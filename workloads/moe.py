"""Training step of mixture-of-experts models, shaped like Mixtral and DeepSeek-V3, with expert parallelism.

    torchrun --nproc-per-node 4 workloads/moe.py --model tiny --ep 2 --fsdp 2

``experts.py`` has the mixture; the rest is as in ``llama.py``. A fake world has no data by which tokens could be
routed: there ``--routing`` is ``balanced`` or ``skewed``.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import parallel
import pipeline
import torch
import torch.distributed as dist
import training
from experts import MixtureOfExperts, balanced, skewed
from latent import LatentAttention, LatentShape
from layers import Attention, Block, Decoder, FeedForward, Part, Shape, rotary_table
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel, parallelize_module

from emulator.errors import InputError


@dataclass(frozen=True)
class MoeShape(Shape):
    """Sizes of one model: ``ffn`` is that of the ``dense`` first layers, ``expert_ffn`` that of one expert."""

    experts: int = 8
    top: int = 2
    expert_ffn: int = 0
    shared: int = 0  # experts that all tokens go to
    dense: int = 0  # first layers without experts
    scores: str = "softmax"
    latent: LatentShape | None = None  # multi-head latent attention

    @property
    def rotary_dim(self) -> int:
        return self.latent.rotary if self.latent else self.head_dim


MODELS = {
    "tiny": MoeShape(
        dim=32, layers=4, heads=4, kv_heads=2, ffn=96, expert_ffn=64, vocab=128, sequence=32, dtype="float32"
    ),
    "mixtral-8x7b": MoeShape(  # arXiv 2401.04088, table 1
        dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, expert_ffn=14336, vocab=32000, sequence=4096
    ),
    "deepseek-v3": MoeShape(  # arXiv 2412.19437, section 4.2
        dim=7168, layers=61, heads=128, kv_heads=128, ffn=18432, vocab=129280, sequence=4096, experts=256, top=8,
        expert_ffn=2048, shared=1, dense=3, scores="sigmoid", latent=LatentShape(),
    ),
}  # fmt: skip


# ---- the workload contract


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this workload; the parsed namespace is the ``config`` of the other functions."""
    training.add_model_arguments(parser, MODELS, 4096)
    parser.add_argument("--ep", type=int, default=1, metavar="N", help="expert parallel over N ranks (times --tp)")
    parser.add_argument("--routing", choices=("learned", "balanced", "skewed"), default="learned")
    parser.add_argument("--skew", type=float, default=1.0, help="with --routing skewed: shares fall as 1/n^SKEW (1)")
    parallel.add_arguments(parser)


def mesh_axes(config: argparse.Namespace) -> dict[str, int]:
    """Extent of every mesh axis, slowest first. Raises InputError if the model cannot be laid out on it."""
    axes = parallel.mesh_axes(config)
    shape, tp, cp = MODELS[config.model], config.tp, config.cp
    check = partial(parallel.check_divides, model=config.model)
    check("experts", shape.experts, config.ep * tp, "--ep")
    if tp > 1 and not config.sp:
        raise InputError("experts over --tp take sequence parallelism: leave --sp on", source="--tp")
    if tp > 1 and shape.latent is not None:
        raise InputError(f"the latent attention of {config.model} is not cut by it", source="--tp")
    if config.fsdp_version == 1 and config.ep > 1:
        raise InputError("expert parallelism goes with version 2", source="--fsdp-version")
    for what, size in {"heads": shape.heads, "key/value heads": shape.kv_heads, "vocabulary": shape.vocab}.items():
        check(what, size, tp, "--tp")
    if cp > 1:
        check("tokens (two chunks per rank)", training.sequence_of(config, shape), 2 * cp, "--cp")
    check("sequence", training.sequence_of(config, shape) // cp, tp, "--tp")
    sharding = parallel.product(config, parallel.SHARDING)
    check("model width per rank", shape.dim, sharding, "--fsdp" if config.fsdp > 1 else "--ep")
    parallel.check_vocabulary(shape.vocab // tp, sharding, config)
    if config.ep * tp > 1 and config.fsdp * cp == 1 and config.master_dtype is not None:
        raise InputError(
            "experts that one rank alone has are in no FSDP unit that could keep them in another dtype",
            source="--master-dtype",
        )
    pipeline.check(config, training.layers_of(config, shape))
    parallel.dtypes(config, shape.dtype)
    return axes


def roles(config: argparse.Namespace) -> tuple[str, ...]:
    """Axes along which ranks do different work: also those that have experts of different popularity."""
    uneven = ("ep", "tp") if config.routing == "skewed" else ()
    return parallel.roles(config) + parallel.split_axes(config, uneven)


def parameters_of(config: argparse.Namespace, *, active: bool = False) -> int:
    """Number of parameters of the whole model, or of those that one token meets."""
    s = MODELS[config.model]
    layers = training.layers_of(config, s)
    if s.latent is not None:
        attention = s.latent.parameters(s.dim, s.heads)
    else:
        attention = s.dim * s.head_dim * (2 * s.heads + 2 * s.kv_heads)
    experts = (s.top if active else s.experts) + s.shared
    mixture = 3 * s.dim * s.expert_ffn * experts + s.dim * s.experts
    dense = min(s.dense, layers)
    ffn = dense * 3 * s.dim * s.ffn + (layers - dense) * mixture
    return layers * (attention + 2 * s.dim) + ffn + 2 * s.vocab * s.dim + s.dim


def describe(config: argparse.Namespace) -> dict[str, Any]:
    """What the trace says about the job."""
    shape, params = MODELS[config.model], parameters_of(config)
    described = training.describe(
        config, shape, params=params, met=parameters_of(config, active=True),
        head_dim=shape.latent.head_dim if shape.latent else None,
    )  # fmt: skip
    return described | {
        "model": f"moe-{config.model}",
        "model_flops_note": "6NT, N what a token meets but the input embedding, + causal attention (backward 2.5x)",
        "notes": described["notes"] | {"routing": config.routing},
    }


def build(config: argparse.Namespace, mesh: DeviceMesh | None) -> training.Job:
    """This rank's part of the model on ``mesh`` (None: all of it, in one process), and AdamW."""
    mesh_axes(config)
    if config.routing == "learned" and dist.is_initialized() and dist.get_backend() == "fake":
        raise InputError("a fake world has no data to route by", source="--routing", remedy="balanced or skewed")
    shape = MODELS[config.model]

    def part_of(part: Part, positions: Tensor, dtype: torch.dtype) -> Decoder:
        rotary = rotary_table(positions, shape.rotary_dim, dtype)
        model = Decoder(shape.dim, shape.vocab, part, partial(make_layer, config), rotary, config.seed)
        if mesh is not None and config.ep * config.tp > 1:
            spread = parallel.as_one_axis(mesh, parallel.split_axes(config, ("ep", "tp")))
            for layer in model.layers.values():
                if isinstance(layer.feed_forward, MixtureOfExperts):
                    layer.feed_forward.spread(spread.get_group())
        return model

    model = training.Model(
        width=shape.dim,
        vocabulary=shape.vocab,
        layers=training.layers_of(config, shape),
        sequence=training.sequence_of(config, shape),
        dtype=shape.dtype,
        build=part_of,
        apply_tp=partial(apply_tp, config),
        shard_experts=partial(shard_experts, config, mesh) if mesh is not None and config.ep * config.tp > 1 else None,
    )
    return training.build_job(config, mesh, model)


def make_layer(config: argparse.Namespace, index: int) -> Block:
    """One decoder layer: with experts, but for the first, dense ones."""
    s = MODELS[config.model]
    attention = LatentAttention(s.dim, s.heads, s.latent) if s.latent is not None else Attention(s)
    if index < s.dense:
        return Block(s.dim, attention, FeedForward(s.dim, s.ffn))
    mixture = MixtureOfExperts(s.dim, s.expert_ffn, s.experts, s.top, shared=s.shared * s.expert_ffn, scores=s.scores)
    if config.routing == "balanced":
        mixture.oracle = balanced(s.experts, s.top)
    elif config.routing == "skewed":
        mixture.oracle = skewed(s.experts, s.top, config.seed * 1009 + index, config.skew)
    return Block(s.dim, attention, mixture)


def apply_tp(config: argparse.Namespace, model: Decoder, mesh: DeviceMesh) -> None:
    """Tensor parallelism of attention and ends. Experts are spread over the ranks instead: each routes its own part of
    the sequence."""
    parallel.apply_tp(model, mesh, config, {})
    between = parallel.layout_between(config)
    for layer in model.layers.values():
        if not isinstance(layer.feed_forward, MixtureOfExperts):
            parallelize_module(layer, mesh, parallel.feed_forward_plan(between))
            continue
        plan: dict[str, Any] = {
            "feed_forward": PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(between,), use_local_output=True
            ),
            "feed_forward.router.gate": SequenceParallel(sequence_dim=0, use_local_output=True),
        }
        if layer.feed_forward.shared is not None:
            plan |= parallel.feed_forward_plan(between, "feed_forward.shared")
        parallelize_module(layer, mesh, plan)


def shard_experts(
    config: argparse.Namespace, mesh: DeviceMesh, layer: nn.Module, how: dict[str, Any]
) -> set[nn.Parameter]:
    """Experts are a unit of their own: sharded over the ranks that have the same ones, averaged over all data.

    Returns the parameters that no unit takes: those of experts that this rank alone has.
    """
    mixture = layer.feed_forward
    if not isinstance(mixture, MixtureOfExperts):
        return set()
    sources = float(parallel.product(config, ("dp", *parallel.SHARDING)))
    if config.fsdp * config.cp == 1:
        for parameter in mixture.experts.parameters():
            parameter.register_hook(lambda gradient: gradient / sources)
        return set(mixture.experts.parameters())
    shards = parallel.as_one_axis(mesh, parallel.split_axes(config, ("fsdp", "cp")))
    dim = 0 if mixture.experts.w1.shape[0] % shards.size() == 0 else 1
    fully_shard(
        mixture.experts, mesh=shards, shard_placement_fn=lambda _parameter: Shard(dim),
        **how,
    )  # fmt: skip
    mixture.experts.set_force_sum_reduction_for_comms(True)  # gloo cannot sum and scale at once
    mixture.experts.set_gradient_divide_factor(sources)
    return set()


def batch(config: argparse.Namespace, step: int) -> Tensor:
    """Token ids of the whole job's step, (B, T + 1): the same on every rank."""
    return training.make_batch(config, step, MODELS[config.model])


def train_step(job: training.Job, tokens: Tensor) -> Tensor | None:
    """Forward, backward and optimizer on this rank's part. Its mean loss, detached; None on ranks without a loss."""
    return training.train_step(job, tokens)


def part_of(config: argparse.Namespace, mesh: DeviceMesh, name: str, tensor: Tensor) -> Tensor:
    """This rank's part of a tensor of the whole model, where it is a plain slice: the experts that live here."""
    over = parallel.split_axes(config, ("ep", "tp"))
    if ".experts." not in name or not over:
        return tensor
    for axis in over:
        tensor = tensor.chunk(mesh[axis].size())[mesh[axis].get_local_rank()]
    return tensor


if __name__ == "__main__":
    training.run_alone(sys.modules[__name__])
