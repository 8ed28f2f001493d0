"""Pipeline parallelism by torch's schedules: which rank has which layers, and the rules each schedule has.

A schedule is torch's own class; ``SCHEDULES`` says how it lays its stages over the ranks. Ranks hold stages r, r+p,
r+2p... (``loop``), or go down and up again (``v``): r and 2p-1-r.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from layers import Part
from parallel import microbatches, sharded_loss
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from emulator.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """How a schedule lays out stages: ``stages`` on each rank by default, ``fixed`` if it must be that many, and
    ``style``; with ``rounds`` microbatches go in equal rounds of about as many as ranks."""

    stages: int
    fixed: bool = True
    style: str = "loop"
    rounds: bool = False


SCHEDULES = {
    "GPipe": Schedule(1),
    "1F1B": Schedule(1),
    "Interleaved1F1B": Schedule(2, fixed=False, rounds=True),
    "LoopedBFS": Schedule(2, fixed=False),
    "InterleavedZeroBubble": Schedule(2, fixed=False, rounds=True),
    "ZBVZeroBubble": Schedule(2, style="v"),
    "DualPipeV": Schedule(2, style="v"),
}


def stages_per_rank(config: argparse.Namespace) -> int:
    """Pipeline stages on each rank."""
    return int(config.stages_per_rank or SCHEDULES[config.schedule].stages)


def check(config: argparse.Namespace, layers: int) -> None:
    """Raise InputError, naming the rule, if a schedule cannot run with these stages and microbatches."""
    if config.schedule not in SCHEDULES:
        raise InputError(f"no schedule {config.schedule!r}; there are {', '.join(SCHEDULES)}", source="--schedule")
    if config.pp == 1:
        if config.stages_per_rank is not None:
            raise InputError("stages belong to a pipeline: --pp is 1", source="--stages-per-rank")
        return
    schedule, per_rank = SCHEDULES[config.schedule], stages_per_rank(config)
    stages, count = config.pp * per_rank, microbatches(config)
    if schedule.fixed and per_rank != schedule.stages:
        raise InputError(
            f"{config.schedule} has {schedule.stages} on each rank, not {per_rank}", source="--stages-per-rank"
        )
    if stages > layers:
        raise InputError(f"{layers} layers are too few for {stages} stages", source="--pp")
    if config.schedule == "1F1B" and count < stages:
        raise InputError(f"1F1B needs at least as many as stages: {count} < {stages}", source="--microbatches")
    if config.schedule == "DualPipeV" and count < stages:
        raise InputError(f"DualPipeV needs at least as many as stages: {count} < {stages}", source="--microbatches")
    rounds = max(1, count // config.pp)
    if schedule.rounds and count % rounds:
        raise InputError(
            f"{config.schedule} runs them in rounds of about {config.pp}: {count} do not divide into {rounds} rounds",
            source="--microbatches",
        )


def stage_parts(layers: int, stages: int) -> list[Part]:
    """Layers of every stage, in equal numbers; if they do not divide, embedding and head count as a layer each."""
    extra = 0 if layers % stages == 0 else 1
    units = layers + 2 * extra
    sizes = [units // stages + (i < units % stages) for i in range(stages)]
    sizes[0] -= extra
    sizes[-1] -= extra
    ends = [sum(sizes[: i + 1]) for i in range(stages)]
    rows = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return [Part(row, first=i == 0, last=i == stages - 1) for i, row in enumerate(rows)]


def stages_of(config: argparse.Namespace, rank: int) -> list[int]:
    """Indices of the stages on a pipeline rank."""
    per_rank, p = stages_per_rank(config), config.pp
    if SCHEDULES[config.schedule].style == "v":
        return [rank, 2 * p - 1 - rank]
    return [rank + i * p for i in range(per_rank)]


def build_schedule(
    config: argparse.Namespace,
    modules: dict[int, nn.Module],
    mesh: DeviceMesh,
    sizes: dict[str, int],
    dtype: torch.dtype,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """torch's schedule for the stages on this rank (``modules`` by index).

    Shapes are given, not found by sending them: ``sizes`` has the sequences of a microbatch, the tokens this rank has
    of each, the width and the vocabulary.
    """
    from torch.distributed import pipelining  # noqa: PLC0415 - takes a while, and few jobs have a pipeline

    count = config.pp * stages_per_rank(config)
    tokens = torch.empty(sizes["batch"], sizes["tokens"], dtype=torch.int64, device="meta")
    inner = sizes["tokens"] // (config.tp if config.sp else 1)
    activation = torch.empty(sizes["batch"], inner, sizes["width"], dtype=dtype, device="meta", requires_grad=True)
    vocabulary = sizes["vocabulary"] // (config.tp if sharded_loss(config) else 1)
    logits = torch.empty(sizes["batch"], sizes["tokens"], vocabulary, dtype=dtype, device="meta", requires_grad=True)
    stages = [
        pipelining.PipelineStage(
            module,
            index,
            count,
            torch.device("cpu"),
            input_args=(tokens if index == 0 else activation,),
            output_args=(logits if index == count - 1 else activation,),
            group=mesh.get_group(),
        )
        for index, module in modules.items()
    ]
    kind = getattr(pipelining, f"Schedule{config.schedule}")
    single = SCHEDULES[config.schedule] == Schedule(1)
    return kind(stages[0] if single else stages, n_microbatches=microbatches(config), loss_fn=loss)


def run(schedule: Any, stages: Sequence[int], count: int, inputs: Tensor, targets: Tensor) -> Tensor | None:
    """Forward and backward of all microbatches. Mean loss on the rank that has the last of ``count`` stages."""
    losses: list[Tensor] = []
    last = {"target": targets, "losses": losses} if count - 1 in stages else {}
    schedule.step(*((inputs,) if 0 in stages else ()), **last, return_outputs=False)
    return torch.stack([loss.detach() for loss in losses]).mean() if losses else None
