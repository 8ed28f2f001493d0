"""What a pipeline does for which stage and microbatch: torch's schedules say so as they call their stages.

Forward and the two halves of a backward are methods of a stage that are given the microbatch; sends and receives are
asked of it first and issued afterwards, so they are remembered by their tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from emulator.capture import accessors
from emulator.capture.patching import patched


@dataclass(frozen=True)
class Chunk:
    """One action of a pipeline schedule. ``microbatch`` is None for what is done once for all of them."""

    stage: int
    microbatch: int | None
    phase: str


class Pipelines:
    """The chunk that runs now, and the chunk that each message belongs to, while :meth:`recording`."""

    def __init__(self) -> None:
        self.chunk: Chunk | None = None
        self.batch: int | None = None  # number of the unit of messages that is being issued
        self._batches = 0
        self._messages: dict[int, tuple[Chunk, torch.Tensor]] = {}  # id of a tensor to send or to fill

    def chunk_of(self, tensor: torch.Tensor) -> Chunk | None:
        """The chunk that a tensor is sent or received for."""
        known = self._messages.pop(id(tensor), None)
        return known[0] if known is not None else self.chunk

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Patch pipeline stages, if there are any, and ``batch_isend_irecv``."""
        stage, schedule = accessors.pipeline_stage(), accessors.pipeline_schedule()
        with ExitStack() as patches:
            for owner in (dist, dist.distributed_c10d):
                patches.enter_context(patched(owner, "batch_isend_irecv", self._unit(dist.batch_isend_irecv)))
            if stage is not None:
                for name, phase in accessors.STAGE_METHODS.items():
                    around = self._asked if name.startswith("get_") else self._run
                    patches.enter_context(patched(stage, name, around(getattr(stage, name), phase)))
            if schedule is not None:
                original = schedule._maybe_compute_loss
                patches.enter_context(patched(schedule, "_maybe_compute_loss", self._loss(original)))
            yield

    @contextmanager
    def _in(self, chunk: Chunk) -> Iterator[None]:
        before, self.chunk = self.chunk, chunk
        try:
            yield
        finally:
            self.chunk = before

    def _run(self, method: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @wraps(method)
        def run(stage: Any, chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            split = phase == "backward" and kwargs.get("full_backward") is False
            microbatch = None if method.__name__ == "perform_reduce_grad" else chunk_id
            with self._in(Chunk(stage.stage_index, microbatch, "backward_input" if split else phase)):
                return method(stage, chunk_id, *args, **kwargs)

        return run

    def _asked(self, method: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @wraps(method)
        def asked(stage: Any, chunk_id: int) -> Any:
            messages = method(stage, chunk_id)
            chunk = Chunk(stage.stage_index, chunk_id, phase)
            self._messages.update((id(message.tensor), (chunk, message.tensor)) for message in messages)
            return messages

        return asked

    def _loss(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def loss(schedule: Any, stage: Any, output: Any, targets: Any, index: int, *args: Any) -> Any:
            with self._in(Chunk(stage.stage_index, index, "forward")):
                return method(schedule, stage, output, targets, index, *args)

        return loss

    def _unit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def unit(*args: Any, **kwargs: Any) -> Any:
            self.batch, self._batches = self._batches, self._batches + 1
            try:
                return function(*args, **kwargs)
            finally:
                self.batch = None

        return unit
