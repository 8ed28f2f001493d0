"""Ways to break a parallel job from outside, for the tests of verification: called in every rank before it is built."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Done:
    """A work that has nothing to do."""

    def wait(self, *_):
        return True


def drop_a_reduce_scatter():
    """The first is left out: each rank keeps its own gradient."""
    original, left = dist.reduce_scatter_single, [1]

    def broken(output, input, **how):
        if not left:
            return original(output=output, input=input, **how)
        left.pop()
        output.copy_(input.chunk(dist.get_world_size())[dist.get_rank()])
        return Done()

    dist.reduce_scatter_single = broken


def average_instead_of_sum():
    """In float64 FSDP2 divides by itself and adds up; averaging divides once more."""
    original = dist.reduce_scatter_single

    def broken(**how):
        return original(**{**how, "op": dist.ReduceOp.AVG})

    dist.reduce_scatter_single = broken


def swap_gathered_shards():
    """What the ranks gathered is put together in the wrong order, once."""
    original, left = dist.all_gather_single, [1]

    def broken(output, *args, **how):
        work = original(output, *args, **how)
        if left:
            left.pop()
            if work is not None:
                work.wait()
            output.copy_(torch.cat(output.chunk(2)[::-1]))
        return work

    dist.all_gather_single = broken


def stale_shard():
    """Rank 1 does not see what its optimizer did to one parameter."""
    before = {}

    def local(optimizer):
        parameter = optimizer.param_groups[0]["params"][2]
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter.data

    def keep(optimizer, *_):
        before["it"] = local(optimizer).clone()

    def restore(optimizer, *_):
        if dist.get_rank() == 1:
            with torch.no_grad():
                local(optimizer).copy_(before["it"])

    register_optimizer_step_pre_hook(keep)
    register_optimizer_step_post_hook(restore)


def skip_tensor_parallel_all_reduce():
    """Gradients of weights that every rank has stay those of the own part of the sequence."""

    def broken(tensor, *_args, **_kwargs):
        return tensor

    functional.all_reduce = broken


def half_of_a_tensor_parallel_sum():
    """Partial sums of one row-parallel matmul are not added up over the group, only cut."""
    original, left = functional.reduce_scatter_single, [1]

    def broken(tensor, reduce_op, scatter_dim, group, *args):
        out = original(tensor, reduce_op, scatter_dim, group, *args)
        if left:
            left.pop()
            return tensor.chunk(2, scatter_dim)[dist.get_rank()].contiguous()
        return out

    functional.reduce_scatter_single = broken


def die():
    """Rank 1 is killed."""
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def fail():
    """Rank 1 raises."""
    if dist.get_rank() == 1:
        raise ZeroDivisionError("rank one is\nbroken")


def hang():
    """Rank 1 does nothing for ever."""
    if dist.get_rank() == 1:
        time.sleep(1e6)


def hang_and_tell():
    """Both ranks hang, having told their process ids."""
    folder = Path(os.environ["VERIFY_BREAKS_FOLDER"])
    (folder / f"pid.{dist.get_rank()}").write_text(str(os.getpid()))
    time.sleep(1e6)
