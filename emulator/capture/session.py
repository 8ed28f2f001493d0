"""Recording one rank: all hooks in at the start, all out at the end, whatever happens in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import torch

from emulator.capture import accessors, memory
from emulator.capture.dispatch import DispatchRecorder
from emulator.capture.holdings import Holdings
from emulator.capture.patching import patched
from emulator.capture.pipelines import Pipelines
from emulator.capture.streams import StreamPlan
from emulator.capture.tags import Tags
from emulator.capture.tape import Tape
from emulator.capture.waits import Waits
from emulator.errors import InputError
from emulator.trace.schema import Op

_active = threading.Lock()


class RankCapture(msgspec.Struct):
    """What one rank did. Ops name groups by their ranks (``"0,1"``) until ranks are merged."""

    rank: int
    world: int
    ops: list[Op]
    groups: dict[str, list[int]]
    notes: dict[str, int]
    resident: dict[str, int]
    params: int
    dtype: str
    layers: int
    mesh: dict[str, int] = {}  # axes and extents, if the process knows them
    exec: dict[str, Any] | None = None
    first_step: bool = False
    model: str = ""  # name of the model's class


class Session:
    """The parts of a recorder that works; :func:`recording` makes one. ``memory``: write memory events."""

    def __init__(self, *, memory: bool = True) -> None:
        self._memory = memory
        self.tape = Tape()
        self.pipelines = Pipelines()
        self.tags = Tags(self.pipelines)
        self.streams = StreamPlan(self.tape, self.tags)
        self.waits = Waits(self.tape, self.tags, self.streams)
        self.recorder = DispatchRecorder(self.tape, self.tags, self.streams, self.waits, self.pipelines)
        self.holdings = Holdings(self.tape.storages, self.tags)
        self.ops: list[Op] = []  # once the recording is over: those of the tape, and memory events
        self.moved: list[int] = []  # place in it of each op on the tape
        self.resident: dict[str, int] = {}

    def close(self) -> None:
        """The step has ended: tell what is alive, and what each storage was for."""
        known, held, unseen = self.holdings.found()
        category = memory.categories(self.tape, known)
        if self._memory:
            self.ops, self.moved = memory.with_events(self.tape, category, held)
        else:
            self.ops, self.moved = self.tape.ops, list(range(len(self.tape.ops)))
        self.resident = memory.before_the_step(self.tape, category, unseen)

    def captured(self, rank: int, world: int) -> RankCapture:
        """What was recorded, with the bytes that were alive before."""
        params, dtype, layers = self.holdings.size()
        return RankCapture(
            rank=rank,
            world=world,
            ops=self.ops,
            groups={name: list(ranks) for name, ranks in self.recorder.groups.items()},
            notes=dict(sorted(self.tape.notes.items())),
            resident=self.resident,
            params=params,
            dtype=dtype,
            layers=layers,
        )


@contextmanager
def recording(*, memory: bool = True) -> Iterator[Session]:
    """Record what runs inside, with or without ``memory`` events. Raises InputError if a recording already runs in this
    process."""
    if not _active.acquire(blocking=False):
        raise InputError(
            "a recording is already running in this process",
            source="emulator.record",
            remedy="end it before starting another: recordings do not nest",
        )
    try:
        accessors.check_version()
        session = Session(memory=memory)
        with ExitStack() as hooks:
            hooks.enter_context(session.tags)
            hooks.enter_context(session.pipelines.recording())
            hooks.enter_context(session.streams.recording())
            hooks.enter_context(session.waits.recording(session.recorder.paused))
            hooks.enter_context(_shape_inference(session.recorder))
            hooks.enter_context(_resizes(session))
            hooks.enter_context(session.tape.storages.watched())
            hooks.enter_context(session.holdings.recording())
            hooks.enter_context(session.recorder.host_reads())
            hooks.enter_context(session.recorder)
            yield session
            session.close()
    finally:
        _active.release()


@contextmanager
def _resizes(session: Session) -> Iterator[None]:
    """A storage that shrinks to nothing or grows from it starts a new life (FSDP2 frees parameters this way)."""
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        if size == 0 or storage.nbytes() == 0:
            session.tape.storages.resized(storage, size, session.streams.current())
        return original(storage, size)

    with patched(torch.UntypedStorage, "resize_", resize):
        yield


@contextmanager
def _shape_inference(recorder: DispatchRecorder) -> Iterator[None]:
    """DTensor infers shapes by running ops on fake full-size tensors: no work of the job."""
    owner, name = accessors.sharding_propagator()
    original = getattr(owner, name)

    def infer(*args: Any, **kwargs: Any) -> Any:
        with recorder.paused():
            return original(*args, **kwargs)

    with patched(owner, name, infer):
        yield
