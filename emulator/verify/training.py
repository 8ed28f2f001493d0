"""Training a workload for a few steps and keeping everything that is to be compared: losses, gradients, parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate
from torch.optim.optimizer import register_optimizer_step_pre_hook

Tensor = Any
Keep = Callable[[str, str, Tensor], None]  # kind, name, tensor (possibly a DTensor)
# What wrappers put into the names of parameters: DDP, FSDP1, activation checkpointing, torch.compile.
WRAPPERS = frozenset({"module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})


def train(workload: Any, mesh: Any, steps: int, keep: Callable[[int], Keep]) -> float:
    """Run ``steps`` training steps of a loaded workload; ``keep(step)`` is given each loss, gradient and parameter.

    Gradients are those the optimizer is given. A rank without a loss (a pipeline's earlier stages) keeps none. Returns
    the largest learning rate.
    """
    module, config = workload.module, workload.config
    job = module.build(config, mesh)
    rates = [0.0]
    for step in range(steps):
        told = keep(step)
        with _gradients(job, told, rates):
            loss = module.train_step(job, module.batch(config, step))
        if isinstance(loss, torch.Tensor):
            told("loss", "", loss.detach())
        with whole_flat_parameters(job):
            for name, parameter in parameters_of(job).items():
                told("parameter", name, parameter.detach())
    return max(rates)


def parameters_of(job: Any) -> dict[str, nn.Parameter]:
    """Every parameter of a job by its name in the bare model. A job is a module, or holds one or several."""
    return {
        ".".join(part for part in name.split(".") if part not in WRAPPERS): parameter
        for model in models_of(job)
        for name, parameter in model.named_parameters()
    }


def models_of(job: Any) -> Iterator[nn.Module]:
    """The modules in a job: itself, its attributes, or items of these."""
    if isinstance(job, nn.Module):
        yield job
        return
    values = list(vars(job).values()) if hasattr(job, "__dict__") else list(job)
    for value in values:
        if isinstance(value, nn.Module):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, nn.Module))


@contextmanager
def whole_flat_parameters(job: Any, *, with_grads: bool = False) -> Iterator[None]:
    """FSDP1 cuts parameters up in flat pieces; meanwhile they are whole on every rank."""
    with ExitStack() as stack:
        for model in models_of(job):
            if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
                stack.enter_context(
                    FullyShardedDataParallel.summon_full_params(model, writeback=False, with_grads=with_grads)
                )
        yield


@contextmanager
def _gradients(job: Any, keep: Keep, rates: list[float]) -> Iterator[None]:
    """Keep the gradients that optimizers are given meanwhile."""

    def before_step(optimizer: Any, *_: Any) -> None:
        rates.extend(float(group.get("lr", 0.0)) for group in optimizer.param_groups)
        given = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        names = [name for name, parameter in parameters_of(job).items() if parameter in given]
        with whole_flat_parameters(job, with_grads=True):
            whole_ones = parameters_of(job)
            for name in names:
                gradient = whole_ones[name].grad
                if gradient is not None:
                    keep("gradient", name, gradient.detach())

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        yield
    finally:
        handle.remove()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; every rank of its mesh has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def owners(tensor: Tensor, rank: int) -> Tensor | None:
    """The rank that holds each element of a sharded tensor, in the tensor's shape; None if it is not sharded."""
    if not isinstance(tensor, DTensor):
        return None
    local = torch.full(tensor.to_local().shape, rank, dtype=torch.int64)
    placements = [p if not p.is_partial() else Replicate() for p in tensor.placements]
    marked = DTensor.from_local(
        local, tensor.device_mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return marked.full_tensor()
