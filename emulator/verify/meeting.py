"""How the processes of a verification meet: gloo through a file, one thread each."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def meet(rank: int, nproc: int, folder: Path, *, seconds: float = 300.0) -> None:
    """Join the default group. One thread each: sums must not depend on how many cores there are."""
    torch.set_num_threads(1)
    # It advises against putting sharded tensors together, which is done here for comparison only.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=nproc,
        timeout=timedelta(seconds=seconds),
    )
