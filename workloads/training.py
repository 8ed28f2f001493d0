"""A training step of a decoder on a mesh: building this rank's part, cutting the batch, forward, backward, optimizer.

Workloads give the layers and the sizes; everything here is the same for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import parallel
import pipeline
import ring
import torch
import torch.nn.functional as F
from layers import Decoder, Part, Shape
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from emulator.cost.attention import attention_flops
from emulator.trace.schema import Attention as AttentionShape


@dataclass(frozen=True)
class Model:
    """What a workload says of its model: sizes, and how to build a part of it and to parallelise that."""

    width: int
    vocabulary: int
    layers: int
    sequence: int
    dtype: str
    build: Callable[[Part, Tensor, torch.dtype], Decoder]  # part, positions, dtype of the computation
    apply_tp: Callable[[Decoder, DeviceMesh], None]
    shard_experts: Callable[[nn.Module, dict[str, Any]], set[nn.Parameter]] | None = None


@dataclass(frozen=True)
class Job:
    """What ``train_step`` needs. ``model`` has all parameters of this rank, under the names of the whole model;
    ``run(inputs, targets)`` does forward and backward and gives the mean loss (None where there is none)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    run: Callable[[Tensor, Tensor], Tensor | None]
    mine: Callable[[Tensor], Tensor]  # this rank's sequences
    positions: Tensor  # ... and which of their tokens


def add_model_arguments(parser: argparse.ArgumentParser, models: Mapping[str, Shape], usual: int) -> None:
    """Which of the models, and what may be changed of it; ``usual`` is the length that all but the tiny one have."""
    parser.add_argument("--model", choices=sorted(models), default="tiny")
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument("--sequence", type=int, help=f"tokens per sequence ({usual}; tiny: 32)")


def sequence_of(config: argparse.Namespace, shape: Shape) -> int:
    """Tokens per sequence, T."""
    return int(config.sequence or shape.sequence)


def layers_of(config: argparse.Namespace, shape: Shape) -> int:
    """Number of decoder layers, L."""
    return int(config.layers or shape.layers)


def sequences_of(config: argparse.Namespace) -> int:
    """Sequences in the whole job's step, B."""
    return int(config.batch * parallel.microbatches(config) * parallel.data_ranks(config))


def build_job(config: argparse.Namespace, mesh: DeviceMesh | None, model: Model) -> Job:
    """This rank's part of ``model`` on ``mesh`` (None: all of it, in one process), and AdamW."""
    computed, kept, reduced = parallel.dtypes(config, model.dtype)
    rank_on = {axis: mesh[axis].get_local_rank() for axis in mesh.mesh_dim_names} if mesh is not None else {}
    cp = rank_on.get("cp", 0)
    positions = ring.zigzag(model.sequence, cp, config.cp) if mesh is not None else torch.arange(model.sequence)
    stages = config.pp * pipeline.stages_per_rank(config) if mesh is not None and config.pp > 1 else 1
    parts = pipeline.stage_parts(model.layers, stages)
    indices = pipeline.stages_of(config, rank_on.get("pp", 0)) if stages > 1 else [0]
    modules: dict[int, nn.Module] = {}
    for index in indices:
        with default_dtype(kept if mesh is not None else computed):
            part = model.build(parts[index], positions, computed)
        modules[index] = parallelise(part, config, mesh, model, MixedPrecisionPolicy(computed, reduced))
    replicas = mesh is not None and config.dp > 1 and parallel.product(config, parallel.SHARDING) == 1
    whole = whole_of([module.module if replicas else module for module in modules.values()])

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.flatten(0, 1)
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        return F.cross_entropy(logits, targets.flatten())

    if stages > 1:
        sizes = {"batch": config.batch, "tokens": len(positions), "width": model.width, "vocabulary": model.vocabulary}
        schedule = pipeline.build_schedule(config, modules, mesh["pp"], sizes, computed, loss)

        def forward_backward(inputs: Tensor, targets: Tensor) -> Tensor | None:
            return pipeline.run(schedule, indices, stages, inputs, targets)
    else:
        count = parallel.microbatches(config) if mesh is not None else 1

        def forward_backward(inputs: Tensor, targets: Tensor) -> Tensor | None:
            return accumulate(modules[0], inputs.chunk(count), targets.chunk(count), loss)

    def run(inputs: Tensor, targets: Tensor) -> Tensor | None:
        with loss_parallel() if mesh is not None and parallel.sharded_loss(config) else contextlib.nullcontext():
            return forward_backward(inputs, targets)

    data, ranks = 0, parallel.data_ranks(config) if mesh is not None else 1
    for axis in parallel.DATA:
        data = data * parallel.extents(config)[axis] + rank_on.get(axis, 0)
    optimizer = parallel.make_optimizer(whole, config if mesh is not None else argparse.Namespace(zero=None))
    return Job(whole, optimizer, run, lambda tokens: tokens.chunk(ranks)[data], positions)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    """Parameters made meanwhile have this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def parallelise(
    part: Decoder, config: argparse.Namespace, mesh: DeviceMesh | None, model: Model, policy: MixedPrecisionPolicy
) -> nn.Module:
    """Put one part of the model on the mesh, from the innermost parallelism out."""
    if mesh is None:
        return part
    if config.cp > 1:
        for layer in part.layers.values():
            layer.attention.attend = ring.ring_attention(mesh["cp"].get_group())
    if config.tp > 1:
        model.apply_tp(part, mesh["tp"])
    if config.recompute != "none":
        parallel.apply_recompute(part, config.recompute)
    shards = parallel.shard_mesh(mesh, config)
    if shards is not None and config.fsdp_version == 1:
        return parallel.apply_fsdp1(part, shards, config, policy)
    if shards is not None:
        parallel.apply_fsdp(part, shards, config, policy, model.shard_experts)
    elif config.dp > 1:
        return parallel.apply_ddp(part, mesh["dp"], config)
    return part


def whole_of(parts: list[nn.Module]) -> nn.Module:
    """The parts on this rank as one module with the names of the whole model; the only part itself."""
    if len(parts) == 1:
        return parts[0]
    whole = nn.Module()
    whole.layers = nn.ModuleDict({name: layer for part in parts for name, layer in part.layers.items()})
    for end in ("tok_embeddings", "norm", "output"):
        whole.add_module(end, next((held for part in parts if (held := getattr(part, end)) is not None), None))
    return whole


def accumulate(
    model: nn.Module, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...], loss: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Forward and backward of each microbatch; gradients are reduced after the last. Mean loss."""
    total: Tensor | None = None
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        last = i == len(inputs) - 1
        if isinstance(model, FSDPModule) and len(inputs) > 1:
            model.set_requires_gradient_sync(last)
        kept_local = hasattr(model, "no_sync") and not last
        with model.no_sync() if kept_local else contextlib.nullcontext():
            part = loss(model(x), y)
            part = part / len(inputs) if len(inputs) > 1 else part
            part.backward()
        total = part.detach() if total is None else total + part.detach()
    assert total is not None
    return total


def train_step(job: Job, tokens: Tensor) -> Tensor | None:
    """Forward, backward and optimizer on this rank's part of the batch, (B, T + 1). This rank's mean loss, detached."""
    mine = job.mine(tokens)
    inputs, targets = mine[:, :-1], mine[:, 1:]
    if len(job.positions) < inputs.shape[1]:
        inputs, targets = inputs[:, job.positions], targets[:, job.positions]
    loss = job.run(inputs, targets)
    job.optimizer.step()
    job.optimizer.zero_grad()
    return loss


def make_batch(config: argparse.Namespace, step: int, shape: Shape) -> Tensor:
    """Token ids of the whole job's step, (B, T + 1): the same on every rank."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    tokens = (sequences_of(config), sequence_of(config, shape) + 1)
    return torch.randint(0, shape.vocab, tokens, generator=generator)


def describe(
    config: argparse.Namespace, shape: Shape, *, params: int, met: int, head_dim: int | None = None
) -> dict[str, Any]:
    """What a trace says about the job; FLOPs are those of the whole step on all ranks (6NT + causal attention).

    ``params`` is the number of all parameters, ``met`` of those that one token meets, the input embedding included;
    ``head_dim`` that of attention (None: the shape's).
    """
    length, layers = sequence_of(config, shape), layers_of(config, shape)
    sequences = sequences_of(config)
    tokens = sequences * length
    attention = sum(
        attention_flops(
            AttentionShape(
                batch=sequences, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=head_dim or shape.head_dim,
                query_length=length, key_length=length, causal=True, backward=backward,
            )
        )
        for backward in (False, True)
    )  # fmt: skip
    return describe_parallel(config, shape) | {
        "params": params,
        "tokens_per_step": tokens,
        "layers": layers,
        "sequence": length,
        "model_flops": 6 * (met - shape.vocab * shape.dim) * tokens + layers * attention,
    }


def describe_parallel(config: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    """What a trace says of how the job is parallelised."""
    said: dict[str, int] = {axis: extent for axis, extent in parallel.extents(config).items() if extent > 1}
    for axis in parallel.ALWAYS:
        said.setdefault(axis, 1)
    said |= {"sp": int(config.sp and config.tp > 1), "loss_parallel": int(parallel.sharded_loss(config))}
    if parallel.microbatches(config) > 1:
        said["microbatches"] = parallel.microbatches(config)
    if config.pp > 1:
        said["stages_per_rank"] = pipeline.stages_per_rank(config)
    rows, ranks = shape.vocab // config.tp, parallel.product(config, parallel.SHARDING)
    notes: dict[str, int | str] = {}
    if rows % ranks:
        notes["uneven_shards"] = f"{rows} vocabulary rows over {ranks} ranks: padded, and the last ranks optimize less"
    return {"parallel": said, "dtype": config.dtype or shape.dtype, "notes": notes}


def run_alone(workload: Any) -> None:
    """Train a workload for a few steps, alone or under torchrun, and print the losses."""
    parser = argparse.ArgumentParser(description=(workload.__doc__ or "").partition("\n")[0])
    workload.add_arguments(parser)
    parser.add_argument("--steps", type=int, default=5)
    config = parser.parse_args()
    axes = workload.mesh_axes(config)
    world = parallel.product(config, parallel.AXES)
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes)) if world > 1 else None
    job = workload.build(config, mesh)
    for step in range(config.steps):
        loss = workload.train_step(job, workload.batch(config, step))
        value = loss.full_tensor() if isinstance(loss, DTensor) else loss
        first_with_loss = mesh is None or mesh.get_rank() == (world - world // config.pp)
        if value is not None and first_with_loss:
            print(f"step {step}: loss {value.item():.6f}")
    if mesh is not None:
        torch.distributed.destroy_process_group()
