"""Real jobs on this machine: N processes over gloo, each captures its own step, the parent merges.

Ranks meet through a file, so no port is needed.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from emulator.capture.processes import run_ranks

WARM_UP = 2  # steps before the recorded one: the first sets things up, in the second DDP makes its buckets anew

# ---- a workload


def capture_processes(
    path: Path, arguments: Sequence[str], nproc: int, *, with_state: bool, memory: bool, time_limit: float
) -> tuple[list[Any], list[bytes]]:
    """Run a few steps of a workload in ``nproc`` processes: captures of the last, and contents if asked for."""
    from emulator.capture.session import RankCapture  # noqa: PLC0415 - torch only when a job is really run

    with tempfile.TemporaryDirectory(prefix="emu-record-") as name:
        folder = Path(name)
        job = (path, tuple(arguments), with_state, memory)
        run_ranks(_workload_rank, job, nproc, folder, source=str(path), time_limit=time_limit)
        captures = [
            msgspec.msgpack.decode((folder / f"capture.{rank}").read_bytes(), type=RankCapture) for rank in range(nproc)
        ]
        contents = [(folder / f"contents.{rank}").read_bytes() for rank in range(nproc)] if with_state else []
    return captures, contents


def _workload_rank(
    rank: int, nproc: int, folder: Path, path: Path, arguments: tuple[str, ...], with_state: bool, memory: bool
) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    from emulator.capture import state, workload  # noqa: PLC0415
    from emulator.capture.session import recording  # noqa: PLC0415

    torch.set_num_threads(1)
    loaded = workload.load(path, arguments)
    module, config = loaded.module, loaded.config
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=nproc, timeout=timedelta(minutes=5)
    )
    axes = loaded.axes or {"world": nproc}
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes)) if nproc > 1 else None
    job = module.build(config, mesh)
    *earlier, last = (module.batch(config, step) for step in range(WARM_UP + 1))
    for tokens in earlier:
        module.train_step(job, tokens)
    with recording(memory=memory) as session:
        keeper = state.State(session) if with_state else None
        loss = module.train_step(job, last)
    del loss  # as by a caller, it was held to the end of the step
    capture = session.captured(rank, nproc)
    if keeper is not None:
        capture.exec = keeper.section()
        (folder / f"contents.{rank}").write_bytes(keeper.contents())
    (folder / f"capture.{rank}").write_bytes(msgspec.msgpack.encode(capture))
    dist.barrier()  # nobody leaves while others still talk to it
    dist.destroy_process_group()


# ---- a script of the user's own


def run_script(path: Path, arguments: Sequence[str], nproc: int, output: Path, *, time_limit: float) -> None:
    """Run a script in ``nproc`` processes as torchrun would; its ``emulator.record`` writes to ``output``."""
    with socket.socket() as probe:  # a port that is free now
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="emu-record-") as name:
        arguments_of_rank = (path, tuple(arguments), output, port)
        run_ranks(_script_rank, arguments_of_rank, nproc, Path(name), source=str(path), time_limit=time_limit)


def _script_rank(
    rank: int, nproc: int, _folder: Path, path: Path, arguments: tuple[str, ...], output: Path, port: int
) -> None:
    import torch  # noqa: PLC0415

    from emulator.capture import api  # noqa: PLC0415

    torch.set_num_threads(1)
    api.redirect(output)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nproc), LOCAL_WORLD_SIZE=str(nproc), GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(str(path), run_name="__main__")
