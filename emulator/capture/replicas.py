"""Data-parallel replicas in a fake world: what ``DistributedDataParallel`` does, without its C++ reducer.

The reducer reads addresses, which fake tensors lack. This stand-in follows its rules (torch/csrc/distributed/c10d/
reducer.cpp): one bucket in the first iteration, then buckets in the order in which gradients became ready, filled as
gradients come, summed in that order while the backward goes on, and copied out when it has ended. A test holds it
to the ops of the real one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from emulator.capture import accessors

FIRST_BUCKET = 1 << 20  # bytes: torch's default for the first bucket, so that communication starts early
BUCKET = 25 << 20


class Replicas(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Stands in for ``torch.nn.parallel.DistributedDataParallel``; options that change no op are accepted."""

    def __init__(
        self,
        module: nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        **_options: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.group = process_group or dist.group.WORLD
        self.world = dist.get_world_size(self.group)
        self.caps = [FIRST_BUCKET, BUCKET] if bucket_cap_mb is None else [int(bucket_cap_mb * (1 << 20))] * 2
        self.synchronous = True
        self._parameters_in_order = [p for p in module.parameters() if p.requires_grad]
        self._buckets: list[_Bucket] = []
        self._place: dict[int, tuple[_Bucket, Tensor]] = {}
        self._ready: list[Tensor] = []  # parameters in the order in which their gradients came
        self._added: Tensor | None = None
        self._sent = 0
        self._rebuilt = False
        self._make_buckets([self._parameters_in_order[::-1]])
        for parameter in self._parameters_in_order:
            parameter.register_hook(partial(self._gradient_comes, parameter))
            parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay where they are meanwhile."""
        before, self.synchronous = self.synchronous, False
        try:
            yield
        finally:
            self.synchronous = before

    def _make_buckets(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._buckets = [_Bucket(parameters) for parameters in groups]
        self._place = {id(p): (b, view) for b in self._buckets for p, view in zip(b.parameters, b.views, strict=True)}

    def _gradient_comes(self, parameter: Tensor, gradient: Tensor) -> None:
        """The reducer runs while the engine still holds what it adds to a gradient that is there."""
        self._added = gradient if parameter.grad is not None else None

    def _gradient_is_ready(self, parameter: Tensor) -> None:
        self._reduce(parameter)
        self._added = None

    def _reduce(self, parameter: Tensor) -> None:
        if not self.synchronous:
            return
        if not any(bucket.filled for bucket in self._buckets):
            self._sent, self._ready = 0, []
            accessors.after_backward(self._copy_out)
        self._ready.append(parameter)
        bucket, view = self._place[id(parameter)]
        with torch.no_grad():
            torch.mul(parameter.grad, 1 / self.world, out=view)
        bucket.filled += 1
        while self._sent < len(self._buckets) and self._buckets[self._sent].is_full:
            dist.all_reduce(self._buckets[self._sent].flat, group=self.group, async_op=True)
            self._sent += 1

    def _copy_out(self) -> None:
        with torch.no_grad():
            for bucket in self._buckets:
                for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                    assert parameter.grad is not None
                    parameter.grad.copy_(view)
                bucket.filled = 0
            if not self._rebuilt:  # the reducer does so as the next forward starts
                self._rebuilt = True
                groups = accessors.bucket_assignment(self._ready, self.caps)
                self._make_buckets([[self._ready[i] for i in group] for group in groups])


class _Bucket:
    """Gradients that are summed together: one flat buffer, and a view of it for each parameter."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.filled = 0
        sizes = [parameter.numel() for parameter in self.parameters]
        self.flat = torch.zeros(sum(sizes), dtype=self.parameters[0].dtype)
        parts = self.flat.split(sizes)
        self.views = [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    @property
    def is_full(self) -> bool:
        return self.filled == len(self.parameters)
