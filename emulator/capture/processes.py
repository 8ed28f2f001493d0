"""Several processes that work together: all of them end when one fails, when time is up, or when their parent is gone.

torch is imported once, in a server process that then forks the ranks, so that a rank costs 0.1 s instead of an import.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec

from emulator.errors import EmuError, InputError

PRELOADED = (
    "torch", "torch._dynamo", "torch.distributed.tensor.parallel", "torch.distributed.fsdp",
    "torch.distributed.pipelining", "torch.distributed.optim", "torch.utils.flop_counter", "safetensors.torch",
    "emulator.capture.api",
)  # fmt: skip
_ASK = signal.SIGUSR1  # "where are you?"
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)', re.MULTILINE)


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

    Raises InputError with the first failing rank's error, or when ``time_limit`` seconds have passed, saying where each
    rank then was; no process is left behind in any case.
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
                    f"not finished after {time_limit:g} s (ranks {', '.join(map(str, running))} still run"
                    f"{_whereabouts(folder, running)})",
                    source=source,
                    remedy="a deadlock, or a longer --time-limit is needed",
                )
            for rank, process in list(running.items()):
                if process.exitcode is not None:
                    del running[rank]
            failed = [rank for rank, process in enumerate(ranks) if process.exitcode]
            if failed:
                time.sleep(0.2)  # ranks that fail with it leave their errors too: the first in time is the cause
                raise _error(folder, ranks, source)
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
        for process in ranks:
            if process.pid is not None:
                process.join()


def _error(folder: Path, ranks: Sequence[Any], source: str) -> InputError:
    """The cause among several failures: a rank that was killed, else the one that failed first."""
    for rank, process in enumerate(ranks):
        if process.exitcode is not None and process.exitcode < 0:
            name = signal.Signals(-process.exitcode).name
            memory = "out of memory?" if name == "SIGKILL" else ""
            return InputError(f"rank {rank} was ended by signal {name}", source=source, remedy=memory)
    reports = sorted(folder.glob("error.*"), key=lambda path: path.stat().st_mtime_ns)
    if not reports:
        rank = next(rank for rank, process in enumerate(ranks) if process.exitcode)
        return InputError(f"rank {rank} ended with exit code {ranks[rank].exitcode}", source=source)
    rank_name = reports[0].suffix[1:]
    failure = msgspec.json.decode(reports[0].read_bytes(), type=Failure)
    if failure.user:
        return InputError(failure.reason, source=failure.source or source, remedy=failure.remedy)
    return InputError(f"rank {rank_name} failed: {failure.reason}", source=source)


def _whereabouts(folder: Path, running: dict[int, Any]) -> str:
    """Where ranks that still run are, as far as they answer: ``; rank 0 in wait (work.py line 12), ...``."""
    for process in running.values():
        if process.is_alive():
            os.kill(process.pid, _ASK)
    time.sleep(0.2)
    said = []
    for rank in sorted(running)[:4]:
        report = folder / f"stack.{rank}"
        frames = _main_thread(report.read_text(errors="replace")) if report.exists() else []
        own = [f for f in frames if "site-packages" not in f["file"] and "/lib/python" not in f["file"]]
        if own:
            said.append(f"rank {rank} in {own[0]['function']} ({Path(own[0]['file']).name} line {own[0]['line']})")
        else:
            said.append(f"rank {rank} does not answer")
    return "; " + ", ".join(said)


def _main_thread(stacks: str) -> list[dict[str, str]]:
    """Frames, innermost first, of the thread that runs a rank; those of this module left out."""
    for stack in re.split(r"^(?:Current thread|Thread) ", stacks, flags=re.MULTILINE):
        frames = [match.groupdict() for match in _FRAME.finditer(stack)]
        if any(frame["function"] == _guarded.__name__ for frame in frames):
            return [frame for frame in frames if frame["file"] != __file__]
    return []


def _guarded(target: Callable[..., None], rank: int, nproc: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    """Body of a rank's process: an error is left in a file, in one line."""
    try:
        faulthandler.register(_ASK, (folder / f"stack.{rank}").open("w"), all_threads=True)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        target(rank, nproc, folder, *arguments)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return
        beside = folder / f"writing.{rank}"
        beside.write_bytes(msgspec.json.encode(failure_of(error)))
        beside.rename(folder / f"error.{rank}")
        sys.stdout.flush()
        os._exit(1)  # not through the interpreter's end: other threads may wait for ranks that will never come


def _end_with_parent() -> None:
    """A rank whose parent was killed would wait for ever for the others, or work for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def failure_of(error: BaseException) -> Failure:
    """An error in one line, with the place in the script that it comes from."""
    if isinstance(error, EmuError):
        return Failure(error.reason, source=error.source, remedy=error.remedy, user=True)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    own = [f for f in frames if f"{os.sep}emulator{os.sep}capture{os.sep}" not in f.filename and "<" not in f.filename]
    where = f" ({Path(own[-1].filename).name} line {own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return Failure(f"{type(error).__name__}: {text[:300]}{where}")
