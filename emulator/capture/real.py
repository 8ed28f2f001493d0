"""Real jobs on this machine: N processes over gloo, each captures its own step, the parent merges.

torch is imported once, in a server process that then forks the ranks; ranks meet through a file, so no port is needed.
The first rank that fails ends them all.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec

from emulator.errors import EmuError, InputError

PRELOADED = (
    "torch", "torch._dynamo", "torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch.utils.flop_counter",
    "safetensors.torch", "emulator.capture.api",
)  # fmt: skip


class Failure(msgspec.Struct):
    """Why a rank ended: ``user`` tells a mistake in the input from a failing script."""

    reason: str
    source: str = ""
    remedy: str = ""
    user: bool = False


def run_ranks(
    target: Callable[..., None], arguments: Sequence[Any], nproc: int, folder: Path, *, source: str, time_limit: float
) -> None:
    """Run ``target(rank, nproc, folder, *arguments)`` in ``nproc`` processes until all have ended.

    Raises InputError with the first failing rank's error, or when ``time_limit`` seconds have passed; no process is
    left behind in any case.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    ranks = [
        context.Process(target=_guarded, args=(target, rank, nproc, folder, tuple(arguments)), daemon=True)
        for rank in range(nproc)
    ]
    end = time.monotonic() + time_limit
    try:
        for process in ranks:
            process.start()
        running = dict(enumerate(ranks))
        while running:
            if not wait([process.sentinel for process in running.values()], max(0.0, end - time.monotonic())):
                raise InputError(
                    f"not finished after {time_limit:g} s (ranks {', '.join(map(str, running))} still run)",
                    source=source,
                    remedy="a deadlock, or a longer --time-limit is needed",
                )
            for rank, process in list(running.items()):
                if process.exitcode is not None:
                    del running[rank]
            failed = [rank for rank, process in enumerate(ranks) if process.exitcode]
            if failed:
                time.sleep(0.2)  # ranks that fail with it leave their errors too: the first in time is the cause
                raise _error(folder, ranks, failed, source)
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
        for process in ranks:
            if process.pid is not None:
                process.join()


def _error(folder: Path, ranks: Sequence[Any], failed: Sequence[int], source: str) -> InputError:
    reports = sorted(folder.glob("error.*"), key=lambda path: path.stat().st_mtime_ns)
    if not reports:
        rank = failed[0]
        return InputError(f"rank {rank} ended with exit code {ranks[rank].exitcode}", source=source)
    rank_name = reports[0].suffix[1:]
    failure = msgspec.json.decode(reports[0].read_bytes(), type=Failure)
    if failure.user:
        return InputError(failure.reason, source=failure.source or source, remedy=failure.remedy)
    return InputError(f"rank {rank_name} failed: {failure.reason}", source=source)


def _guarded(target: Callable[..., None], rank: int, nproc: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    """Body of a rank's process: an error is left in a file, in one line."""
    try:
        target(rank, nproc, folder, *arguments)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return
        beside = folder / f"writing.{rank}"
        beside.write_bytes(msgspec.json.encode(_failure(error)))
        beside.rename(folder / f"error.{rank}")
        sys.stdout.flush()
        os._exit(1)  # not through the interpreter's end: other threads may wait for ranks that will never come


def _failure(error: BaseException) -> Failure:
    if isinstance(error, EmuError):
        return Failure(error.reason, source=error.source, remedy=error.remedy, user=True)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    own = [f for f in frames if f"{os.sep}emulator{os.sep}capture{os.sep}" not in f.filename and "<" not in f.filename]
    where = f" ({Path(own[-1].filename).name} line {own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return Failure(f"{type(error).__name__}: {text[:300]}{where}")


# ---- a workload


def capture_processes(
    path: Path, arguments: Sequence[str], nproc: int, *, with_state: bool, time_limit: float
) -> tuple[list[Any], list[bytes]]:
    """Run two steps of a workload in ``nproc`` processes: captures of the second, and contents if asked for."""
    from emulator.capture.session import RankCapture  # noqa: PLC0415 - torch only when a job is really run

    with tempfile.TemporaryDirectory(prefix="emu-record-") as name:
        folder = Path(name)
        run_ranks(
            _workload_rank, (path, tuple(arguments), with_state), nproc, folder, source=str(path), time_limit=time_limit
        )
        captures = [
            msgspec.msgpack.decode((folder / f"capture.{rank}").read_bytes(), type=RankCapture) for rank in range(nproc)
        ]
        contents = [(folder / f"contents.{rank}").read_bytes() for rank in range(nproc)] if with_state else []
    return captures, contents


def _workload_rank(
    rank: int, nproc: int, folder: Path, path: Path, arguments: tuple[str, ...], with_state: bool
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
    first, second = (module.batch(config, step) for step in range(2))
    module.train_step(job, first)
    with recording() as session:
        keeper = state.State(session) if with_state else None
        module.train_step(job, second)
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
