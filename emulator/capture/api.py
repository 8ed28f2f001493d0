"""``emulator.record`` and ``emulator.Recorder``: recording from within a script of one's own.

    with emulator.record("step.json"):
        train_step()

Under torchrun every rank records, and rank 0 gathers the captures through the job's own store and writes one trace.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import msgspec
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from emulator.capture import accessors
from emulator.capture.output import check_output, complete, save, save_rank
from emulator.capture.session import RankCapture, Session, recording
from emulator.capture.state import State
from emulator.errors import InputError
from emulator.trace.schema import Meta

P = ParamSpec("P")
R = TypeVar("R")

FOLDER = "EMU_RECORD_DIR"  # environment: every rank leaves a file there instead of sending its capture to rank 0
GATHER_TIMEOUT = timedelta(minutes=5)
_PART = 1 << 20  # bytes per entry of the job's store
_redirected: Path | None = None
_gathered = 0  # recordings of this process so far: keys in the store are used once


def redirect(output: Path) -> None:
    """Send every recording of this process to ``output`` (``emu record -o``), whatever name the script gives."""
    global _redirected  # noqa: PLW0603 - set once, by the launcher of the process
    _redirected = output


class record:
    """Record what is enclosed, as a context manager, or the second call of a function, as a decorator.

    The first step of a job does work that later ones do not (lazy set-up, caches), so a recording of one warns: enclose
    a later step. A decorated function is recorded in its first two calls; the second, which is a usual one, stays.

    ``path`` is the trace file (``.json``, ``.json.gz``, ``.json.zst``); ``with_state`` also keeps what is needed to
    execute the step again, in a safetensors file beside it; without ``memory`` the trace has no allocations and frees.
    Nothing is written if the enclosed code fails. Raises
    InputError where recordings would nest, or if the file cannot be written.
    """

    def __init__(self, path: str | Path, *, with_state: bool = False, memory: bool = True) -> None:
        self._path = _redirected or Path(path)
        self._with_state = with_state
        self._memory = memory
        self._hooks = ExitStack()
        self._session: Session | None = None
        self._state: State | None = None
        self._first = False
        self._calls = 0
        self._warn = True

    def check(self) -> None:
        """Raise InputError if the files could not be written."""
        check_output(self._path, with_state=self._with_state)

    def __enter__(self) -> record:
        self.check()
        self._first = accessors.sequence_number() == 0  # this thread never made an autograd node
        self._session = self._hooks.enter_context(recording(memory=self._memory))
        self._state = State(self._session) if self._with_state else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(keep=error is None)

    def end(self, *, keep: bool) -> None:
        """Take the hooks out and, to keep the recording, write it."""
        session, self._session = self._session, None
        self._hooks.close()
        if not keep or session is None:
            return
        first = self._first or session.tags.first_step
        if first and self._warn:
            warnings.warn(
                "emulator.record: this was a first step, which does work that later steps do not; "
                "enclose a later one, or use emulator.Recorder",
                stacklevel=3,
            )
        _finish(session, self._state, self._path, first_step=first)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            self._calls += 1
            if self._calls > 2:
                return function(*args, **kwargs)
            self._warn = False  # the next call replaces this recording
            with self:
                return function(*args, **kwargs)

        return recorded


class Recorder:
    """Record some steps of a training loop, like ``torch.profiler``'s schedule.

        with emulator.Recorder("t.json", wait=1, active=1) as recorder:
            for batch in data:
                train_step(batch)
                recorder.step()

    ``wait`` steps are passed over, ``active`` ones recorded, the rest runs as if nothing were there. ``with_state`` and
    ``memory`` are those of :class:`record`.
    """

    def __init__(
        self, path: str | Path, *, wait: int = 1, active: int = 1, with_state: bool = False, memory: bool = True
    ) -> None:
        if wait < 0 or active < 1:
            raise InputError(
                f"wait={wait}, active={active}", source="emulator.Recorder", remedy="wait >= 0, active >= 1"
            )
        self._record = record(path, with_state=with_state, memory=memory)
        self._wait = wait
        self._active = active
        self._steps = 0

    def __enter__(self) -> Recorder:
        self._record.check()
        if self._wait == 0:
            self._record.__enter__()
        return self

    def step(self) -> None:
        """Say that a step has ended."""
        self._steps += 1
        if self._steps == self._wait:
            self._record.__enter__()
        elif self._steps == self._wait + self._active:
            self._record.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        needed = self._wait + self._active
        if self._wait <= self._steps < needed:  # a recording runs: keep it if it has whole steps
            self._record.end(keep=error is None and self._steps > self._wait)
        if self._steps < needed and error is None:
            warnings.warn(
                f"emulator.Recorder: the loop ended after {self._steps} steps; wait={self._wait} and "
                f"active={self._active} need {needed}",
                stacklevel=2,
            )


def _finish(session: Session, state: State | None, path: Path, *, first_step: bool) -> None:
    joined = dist.is_available() and dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    capture = session.captured(rank, world)
    capture.first_step = first_step
    capture.mesh = _mesh(session, world)
    capture.model = next((type(root).__name__ for root in session.tags.roots), "")
    if state is not None:
        capture.exec = state.section()
    content = state.contents() if state is not None else b""
    fake = joined and dist.get_backend() == "fake"
    if folder := os.environ.get(FOLDER):
        save_rank(Path(folder), capture)
        return
    alone = world == 1 or fake
    captures, contents = ([capture], [content]) if alone else _gather(capture, content, path)
    if not captures:
        return
    meta = complete(Meta(model=capture.model, source="torch-fake" if fake else "torch"), captures, capture.mesh)
    save(path, captures, contents if state is not None and not fake else [], capture.mesh, meta)


def _gather(capture: RankCapture, content: bytes, path: Path) -> tuple[list[RankCapture], list[bytes]]:
    """Captures and contents of all ranks, on rank 0; nothing on the others."""
    global _gathered  # noqa: PLW0603
    _gathered += 1
    store = accessors.default_store()
    prefix = f"emulator/{_gathered}"
    if capture.rank:
        for name, data in (("capture", msgspec.msgpack.encode(capture)), ("content", content)):
            parts = [data[i : i + _PART] for i in range(0, len(data), _PART)]
            for number, part in enumerate(parts):
                store.set(f"{prefix}/{capture.rank}/{name}/{number}", part)
            store.set(f"{prefix}/{capture.rank}/{name}", str(len(parts)))
        store.wait([f"{prefix}/done"], GATHER_TIMEOUT)  # rank 0 may hold the store: it must not end before we are read
        return [], []
    captures, contents = [capture], [content]
    for rank in range(1, capture.world):
        keys = [f"{prefix}/{rank}/{name}" for name in ("capture", "content")]
        try:
            store.wait(keys, GATHER_TIMEOUT)
        except (RuntimeError, ValueError):
            raise InputError(
                f"rank {rank} recorded nothing within {GATHER_TIMEOUT.total_seconds():.0f} s",
                source=str(path),
                remedy=f"every rank has to enter emulator.record; with {FOLDER} set each leaves a file there",
            ) from None
        data, content = (
            b"".join(bytes(store.get(f"{key}/{number}")) for number in range(int(store.get(key)))) for key in keys
        )
        captures.append(msgspec.msgpack.decode(data, type=RankCapture))
        contents.append(content)
    store.set(f"{prefix}/done", "1")
    return captures, contents


def _mesh(session: Session, world: int) -> dict[str, int]:
    """Axes of the mesh that the parameters lie on, if it covers the world; else one axis, ``world``."""
    for root in session.tags.roots:
        for parameter in root.parameters():
            if isinstance(parameter, DTensor):
                for mesh in (accessors.root_mesh(parameter.device_mesh), parameter.device_mesh):
                    if mesh.mesh_dim_names and mesh.mesh.flatten().tolist() == list(range(world)):
                        return dict(zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True))
    return {"world": world}
