"""How a decoder is parallelised with torch's own tools, and the options that say so.

``AXES`` is the mesh, slowest axis first. Data is cut along ``dp`` (replicas), ``fsdp`` and ``ep``; the sequence along
``cp``; matmuls along ``tp``; layers along ``pp``; experts along ``ep`` (and ``tp``). Parameters other than experts are
sharded over ``fsdp``, ``cp`` and ``ep`` together, experts over ``fsdp`` alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from emulator.errors import InputError

AXES = ("pp", "dp", "fsdp", "cp", "ep", "tp")
SHARDING = ("fsdp", "cp", "ep")  # axes over which parameters are sharded
DATA = ("dp", "fsdp", "ep")  # axes along which the batch is cut
ALWAYS = ("fsdp", "tp")  # axes of every mesh, also of length 1


# ---- options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of parallelism; ``mesh_axes`` checks what they say."""
    switch = argparse.BooleanOptionalAction
    add = parser.add_argument
    add("--batch", type=int, default=1, help="sequences per data-parallel rank and microbatch")
    add(
        "--microbatches",
        type=int,
        metavar="M",
        help="parts of a batch (--pp: twice as many as ranks)",
    )
    add("--pp", type=int, default=1, metavar="N", help="pipeline over N ranks")
    add("--schedule", default="1F1B", help="of the pipeline (1F1B)")
    add("--stages-per-rank", type=int, metavar="V", help="pipeline stages on each rank")
    add("--dp", type=int, default=1, metavar="N", help="N replicas: DDP, or with --fsdp hybrid sharding")
    add("--zero", type=int, choices=(0, 1, 2, 3), help="what is sharded (--dp: 0, 1; --fsdp: 2, 3)")
    add("--bucket-mb", type=float, help="size of DDP's gradient buckets (25, the first 1)")
    add("--fsdp", type=int, default=1, metavar="N", help="fully sharded data parallel over N ranks")
    add("--fsdp-version", type=int, choices=(1, 2), default=2, help="FullyShardedDataParallel or fully_shard (2)")
    add("--prefetch", type=int, default=0, metavar="N", help="gather N layers ahead, both ways, explicitly")
    add("--cp", type=int, default=1, metavar="N", help="context parallel: ring attention over N ranks")
    add("--tp", type=int, default=1, metavar="N", help="tensor parallel over N ranks")
    add("--sp", action=switch, default=True, help="sequence parallelism beside --tp")
    add("--loss-parallel", action=switch, help="loss on sharded logits (default: with --tp and --sp)")
    add("--recompute", choices=("none", "selective", "full"), default="none", help="activation checkpointing")
    add("--dtype", help="of the computation (bfloat16; tiny: float32)")
    add("--master-dtype", help="of the parameters, with --fsdp (as --dtype)")
    add("--reduce-dtype", help="of the gradient reduction (float32; float64 with float64 parameters)")
    add("--seed", type=int, default=0)


def extents(config: argparse.Namespace) -> dict[str, int]:
    """Length of every axis of ``AXES``."""
    return {axis: int(getattr(config, axis, 1)) for axis in AXES}


def split_axes(config: argparse.Namespace, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the axes that have more than one rank."""
    return tuple(axis for axis in axes if extents(config)[axis] > 1)


def data_ranks(config: argparse.Namespace) -> int:
    """Number of ranks that have sequences of their own."""
    return product(config, DATA)


def product(config: argparse.Namespace, axes: tuple[str, ...]) -> int:
    """Number of ranks along some axes."""
    count = 1
    for axis in axes:
        count *= extents(config)[axis]
    return count


def microbatches(config: argparse.Namespace) -> int:
    """Parts into which each rank cuts its batch."""
    return int(config.microbatches or (2 * config.pp if config.pp > 1 else 1))


def sharded_loss(config: argparse.Namespace) -> bool:
    """Whether the loss is computed on logits sharded over the vocabulary."""
    return config.tp > 1 and (config.sp if config.loss_parallel is None else config.loss_parallel)


def dtype_of(name: str, option: str) -> torch.dtype:
    """The torch dtype of that name; InputError if it is no floating-point type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"no floating-point dtype {name!r}", source=option)
    return dtype


def dtypes(config: argparse.Namespace, default: str) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """Dtype of the computation, of the parameters kept, and of the gradient reduction."""
    computed = dtype_of(config.dtype or default, "--dtype")
    kept = dtype_of(config.master_dtype, "--master-dtype") if config.master_dtype else computed
    widest = "float64" if torch.float64 in (computed, kept) else "float32"
    return computed, kept, dtype_of(config.reduce_dtype or widest, "--reduce-dtype")


def mesh_axes(config: argparse.Namespace) -> dict[str, int]:
    """Extent of every mesh axis, slowest first. Raises InputError naming the rule that a combination breaks."""
    numbers = ("batch", "microbatches", "layers", "sequence", "stages_per_rank", *AXES)
    for name in numbers:
        if (value := getattr(config, name, None)) is not None and value < 1:
            raise InputError(f"must be at least 1, is {value}", source=f"--{name.replace('_', '-')}")
    if config.prefetch < 0:
        raise InputError(f"must be at least 0, is {config.prefetch}", source="--prefetch")
    axes = extents(config)
    sharding = product(config, SHARDING) > 1
    for broken, option, rule in (
        (axes["dp"] > 1 and not sharding and axes["tp"] > 1, "--dp",
         "DDP does not take the sharded parameters of --tp; cut the data with --fsdp"),
        (axes["dp"] > 1 and sharding and product(config, ("cp", "ep")) > 1, "--dp",
         "replicas of sharded groups go with --fsdp alone, not with --cp or --ep"),
        (config.zero in (0, 1) and sharding, "--zero", f"{config.zero} is data parallel without --fsdp, --cp or --ep"),
        (config.zero in (2, 3) and not sharding, "--zero", f"{config.zero} shards over --fsdp, which is 1"),
        (config.zero == 1 and axes["dp"] == 1, "--zero", "1 shards the optimizer over --dp, which is 1"),
        (config.fsdp_version == 1 and product(config, ("pp", "tp", "cp", "ep")) > 1, "--fsdp-version",
         "1 is data parallel only: --pp, --tp, --cp and --ep go with version 2"),
        (config.prefetch > 0 and (not sharding or config.fsdp_version == 1), "--prefetch",
         "is of --fsdp (version 2)"),
        (config.master_dtype is not None and not sharding, "--master-dtype",
         "it is --fsdp that keeps parameters in another dtype"),
        (config.recompute == "selective" and axes["pp"] > 1 and config.schedule in SPLIT, "--recompute",
         f"{config.schedule} runs the two halves of a backward apart: selective recomputation would run twice"),
    ):  # fmt: skip
        if broken:
            raise InputError(rule, source=option)
    return {axis: extent for axis, extent in axes.items() if extent > 1 or axis in ALWAYS}


def roles(config: argparse.Namespace) -> tuple[str, ...]:
    """Axes along which ranks do different work: stages of a pipeline, halves of a causal sequence, parameters that one
    rank's optimizer has (ZeRO-1), and those that a cut through flat parameters leaves on a rank (the first FSDP)."""
    axes = ["pp", "cp"]
    if config.zero == 1:
        axes.append("dp")
    if config.fsdp_version == 1:
        axes.append("fsdp")
    return split_axes(config, tuple(axes))


SPLIT = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")  # schedules that split the backward


def check_divides(what: str, size: int, parts: int, option: str, model: str) -> None:
    """Raise InputError unless ``size`` can be cut into equal ``parts``."""
    if size % parts:
        raise InputError(f"{size} {what} of {model} do not divide by {parts}", source=option)


def check_vocabulary(rows: int, ranks: int, config: argparse.Namespace) -> None:
    """Raise InputError if there are fewer rows of the vocabulary than ranks to shard them over. They need not divide:
    FSDP pads, and the last rank has less."""
    if rows < ranks:
        raise InputError(
            f"{rows} vocabulary rows are too few for {ranks}", source="--fsdp" if config.fsdp > 1 else "--cp"
        )


# ---- what it does to a model


def apply_tp(model: nn.Module, mesh: DeviceMesh, config: argparse.Namespace, feed_forward: dict[str, Any]) -> None:
    """Tensor parallelism by torch's plans: whole heads and feed-forward columns per rank.

    ``PrepareModuleInput`` makes the input of attention (and feed-forward) one DTensor for its three (two) matmuls, so
    that its gradient is summed once: per layer 2 + 2 collectives instead of 2 + 5. ``feed_forward`` is the plan of that
    half of a layer.
    """
    column, row = ColwiseParallel, RowwiseParallel
    between = layout_between(config)
    plan: dict[str, Any] = {
        "attention": PrepareModuleInput(
            input_layouts=(between, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.wq": column(),
        "attention.wk": column(),
        "attention.wv": column(),
        "attention.wo": row(output_layouts=between),
        **feed_forward,
    }
    sharded = sharded_loss(config)
    ends: dict[str, Any] = {
        "tok_embeddings": row(input_layouts=Replicate(), output_layouts=between),
        "output": column(
            input_layouts=between,
            output_layouts=Shard(-1) if sharded else Replicate(),
            use_local_output=not sharded,
        ),
    }
    if config.sp:
        plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        ends |= {"norm": SequenceParallel()}
    for layer in model.layers.values():
        parallelize_module(layer, mesh, plan)
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if getattr(model, name) is not None})


def layout_between(config: argparse.Namespace) -> Replicate | Shard:
    """How activations lie between the matmul groups: whole, or with sequence parallelism cut along the sequence."""
    return Shard(1) if config.sp else Replicate()


def feed_forward_plan(between: Replicate | Shard, name: str = "feed_forward") -> dict[str, Any]:
    """Tensor parallelism of a SwiGLU feed-forward at ``name`` in a layer."""
    return {
        name: PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
        f"{name}.w1": ColwiseParallel(),
        f"{name}.w3": ColwiseParallel(),
        f"{name}.w2": RowwiseParallel(output_layouts=between),
    }


def apply_recompute(model: nn.Module, how: str) -> None:
    """Activation checkpointing of every layer: ``full`` keeps its input only, ``selective`` also what its matmuls and
    attention gave."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: PLC0415
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts  # noqa: PLC0415

    aten = torch.ops.aten
    kept = {aten.mm.default, aten._scaled_dot_product_flash_attention_for_cpu.default}

    def policy(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    options = {} if how == "full" else {"context_fn": partial(create_selective_checkpoint_contexts, policy)}
    for name, layer in list(model.layers.items()):
        model.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=False, **options)


def shard_mesh(mesh: DeviceMesh, config: argparse.Namespace) -> DeviceMesh | None:
    """The mesh over which parameters are sharded, with the replicas before it; None if they are not."""
    axes = split_axes(config, SHARDING)
    if not axes:
        return None
    if config.dp > 1:
        return mesh["dp", axes[0]]
    return as_one_axis(mesh, axes)


def as_one_axis(mesh: DeviceMesh, axes: tuple[str, ...]) -> DeviceMesh:
    """The part of the mesh along some axes, as a mesh of one axis."""
    return mesh[axes[0]] if len(axes) == 1 else mesh[axes]._flatten("_".join(axes))


def apply_fsdp(
    model: nn.Module,
    mesh: DeviceMesh,
    config: argparse.Namespace,
    policy: MixedPrecisionPolicy,
    shard_experts: Callable[[nn.Module, dict[str, Any]], set[nn.Parameter]] | None = None,
) -> None:
    """Fully sharded data parallelism: each layer is one unit, the rest belongs to the root.

    ZeRO-3, or with ``--zero 2`` (and under a pipeline, which passes each layer many times) parameters stay gathered
    between forward and backward. ``shard_experts`` shards what a layer shards differently, and says what it leaves out.
    """
    how: dict[str, Any] = {"mp_policy": policy}
    if config.zero == 2 or config.pp > 1:
        how["reshard_after_forward"] = False
    left_out: set[nn.Parameter] = set()
    for layer in model.layers.values():
        if shard_experts is not None:
            left_out |= shard_experts(layer, how)
        fully_shard(layer, mesh=mesh, ignored_params=left_out, **how)
    fully_shard(model, mesh=mesh, ignored_params=left_out, **how)
    layers: list[FSDPModule] = list(model.layers.values())
    for i, layer in enumerate(layers if config.prefetch else []):
        layer.set_modules_to_forward_prefetch(layers[i + 1 : i + 1 + config.prefetch])
        layer.set_modules_to_backward_prefetch(layers[max(0, i - config.prefetch) : i][::-1])


def apply_fsdp1(model: nn.Module, mesh: DeviceMesh, config: argparse.Namespace, policy: MixedPrecisionPolicy) -> Any:
    """The first FSDP, with flat parameters: full shard, or with ``--zero 2`` gathered until the backward."""
    from torch.distributed import fsdp  # noqa: PLC0415
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: PLC0415

    strategy = fsdp.ShardingStrategy
    if config.dp > 1:
        chosen = strategy._HYBRID_SHARD_ZERO2 if config.zero == 2 else strategy.HYBRID_SHARD
    else:
        chosen = strategy.SHARD_GRAD_OP if config.zero == 2 else strategy.FULL_SHARD
    kinds = {type(layer) for layer in model.layers.values()}
    return fsdp.FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=chosen,
        auto_wrap_policy=ModuleWrapPolicy(kinds),
        mixed_precision=fsdp.MixedPrecision(param_dtype=policy.param_dtype, reduce_dtype=policy.reduce_dtype),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


def apply_ddp(model: nn.Module, mesh: DeviceMesh, config: argparse.Namespace) -> nn.Module:
    """Replicas whose gradients are averaged in buckets while the backward runs."""
    from torch.nn import parallel  # noqa: PLC0415 - looked up here: in a fake world something else stands in its place

    return parallel.DistributedDataParallel(
        model, process_group=mesh.get_group(), bucket_cap_mb=config.bucket_mb, forward_sync_buffers=False
    )


def make_optimizer(model: nn.Module, config: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW, fused: one op per mesh that parameters lie on; with ``--zero 1`` its state is sharded over replicas."""
    if config.zero == 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415

        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3, fused=True)
    alike: dict[Any, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        alike.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in alike.values()], lr=1e-3, fused=True)
