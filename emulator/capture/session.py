"""Recording one rank: all hooks in at the start, all out at the end, whatever happens in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from emulator.capture import accessors
from emulator.capture.dispatch import DispatchRecorder
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
    """The parts of a recorder that works; :func:`recording` makes one."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.pipelines = Pipelines()
        self.tags = Tags(self.pipelines)
        self.streams = StreamPlan(self.tape, self.tags)
        self.waits = Waits(self.tape, self.tags, self.streams)
        self.recorder = DispatchRecorder(self.tape, self.tags, self.streams, self.waits, self.pipelines)

    def captured(self, rank: int, world: int) -> RankCapture:
        """What was recorded, with the bytes that models and optimizers hold."""
        resident, params, dtype, layers = _holdings(self.tags)
        return RankCapture(
            rank=rank,
            world=world,
            ops=self.tape.ops,
            groups={name: list(ranks) for name, ranks in self.recorder.groups.items()},
            notes=dict(sorted(self.tape.notes.items())),
            resident=resident,
            params=params,
            dtype=dtype,
            layers=layers,
        )


@contextmanager
def recording() -> Iterator[Session]:
    """Record what runs inside. Raises InputError if a recording already runs in this process."""
    if not _active.acquire(blocking=False):
        raise InputError(
            "a recording is already running in this process",
            source="emulator.record",
            remedy="end it before starting another: recordings do not nest",
        )
    try:
        accessors.check_version()
        session = Session()
        with ExitStack() as hooks:
            hooks.enter_context(session.tags)
            hooks.enter_context(session.pipelines.recording())
            hooks.enter_context(session.streams.recording())
            hooks.enter_context(session.waits.recording(session.recorder.paused))
            hooks.enter_context(_shape_inference(session.recorder))
            hooks.enter_context(_resizes(session.tape))
            hooks.enter_context(session.recorder.host_reads())
            hooks.enter_context(session.recorder)
            yield session
    finally:
        _active.release()


@contextmanager
def _resizes(tape: Tape) -> Iterator[None]:
    """A storage that shrinks to nothing or grows from it starts a new life (FSDP2 frees parameters this way)."""
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        if size == 0 or storage.nbytes() == 0:
            tape.storages.renew(storage)
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


def _holdings(tags: Tags) -> tuple[dict[str, int], int, str, int]:
    """Bytes this rank holds between steps by kind, parameters of the whole model, their dtype, number of layers."""
    bytes_of: dict[str, dict[int, int]] = {"parameter": {}, "gradient": {}, "buffer": {}, "optimizer": {}}

    def hold(kind: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            local = value._local_tensor if isinstance(value, DTensor) else value
            storage = local.untyped_storage()
            bytes_of[kind][storage._cdata] = storage.nbytes()

    parameters: dict[int, nn.Parameter] = {}
    layers: set[str] = set()
    for root in tags.roots:
        layers.update(path for path, module in root.named_modules() if _is_layer(path, module))
        parameters.update((id(p), p) for p in root.parameters())
        for buffer in root.buffers():
            hold("buffer", buffer)
    for optimizer in tags.optimizers:
        parameters.update((id(p), p) for group in optimizer.param_groups for p in group["params"])
        for state in optimizer.state.values():
            for value in state.values():
                hold("optimizer", value)
    for parameter in parameters.values():
        hold("parameter", parameter)
        hold("gradient", parameter.grad)
    dtype = next((str(p.dtype).removeprefix("torch.") for p in parameters.values()), "")
    resident = {kind: sum(held.values()) for kind, held in bytes_of.items() if held}
    return resident, sum(p.numel() for p in parameters.values()), dtype, len(layers)


def _is_layer(path: str, module: nn.Module) -> bool:
    """One of a numbered row of modules that is not inside another one: ``layers.3``, but not ``layers.3.experts.1``."""
    return path.rpartition(".")[2].isdigit() and sum(part.isdigit() for part in path.split(".")) == 1
