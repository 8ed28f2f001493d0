"""Comparing a rank's tensors with those that the single process kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from emulator.verify.strategy import Difference
from emulator.verify.tolerance import Tolerance
from emulator.verify.training import owners, whole

Tensor = Any


class Comparison:
    """Collects the differences of one rank. ``kept`` maps ``step/kind/name`` to the reference (safetensors);
    ``part_of(name, whole)`` is what of a tensor this rank has, where the workload itself cuts it up."""

    def __init__(self, kept: Any, bounds: Tolerance, rank: int, part_of: Callable[[str, Tensor], Tensor]) -> None:
        self.found: list[Difference] = []
        self._kept = kept
        self._keys = set(kept.keys())
        self._bounds = bounds
        self._rank = rank
        self._part_of = part_of
        self._losses: dict[int, float] = {}
        self._owners: dict[tuple[str, str], Tensor | None] = {}

    def at_step(self, step: int) -> Callable[[str, str, Tensor], None]:
        """What is told each tensor of a step as soon as it is there. Sharded tensors are put together for it."""

        def told(kind: str, name: str, tensor: Tensor) -> None:
            if kind == "loss":
                self._losses[step] = float(whole(tensor).double().mean())
            else:
                self._compare(step, kind, name, tensor)

        return told

    def compare_losses(self, steps: int) -> None:
        """Compare the mean of the losses that ranks returned: each has that of its own sequences, equally many."""
        mine = torch.tensor(
            [[self._losses.get(s, 0.0), float(s in self._losses)] for s in range(steps)], dtype=torch.float64
        )
        dist.all_reduce(mine)
        for step, (total, count) in enumerate(mine.tolist()):
            if count and self._rank == 0:  # the mean is the same on all
                reference = float(self._kept.get_tensor(f"{step}/loss/").double().mean())
                bound = self._bounds.relative * max(abs(reference), 1.0)
                error = abs(total / count - reference)
                self.found.append(Difference(step, "loss", "", error, bound, abs(reference), -1))

    def _compare(self, step: int, kind: str, name: str, tensor: Tensor) -> None:
        mine = whole(tensor)
        key = f"{step}/{kind}/{name}"
        if key not in self._keys:
            self.found.append(Difference(step, kind, f"{name} (unknown to the reference)", float("inf"), 0.0, 0.0, -1))
            return
        reference = self._part_of(name, self._kept.get_tensor(key))
        if mine.shape != reference.shape:
            self.found.append(Difference(step, kind, f"{name} (of another shape)", float("inf"), 0.0, 0.0, -1))
            return
        difference = (mine.double() - reference.double()).abs().nan_to_num(nan=float("inf"))
        size = float(reference.double().abs().max())
        error = float(difference.max())
        if kind == "parameter":
            resolution = torch.finfo(reference.dtype).eps * size
            bound = (step + 1) * self._bounds.moved + resolution
        else:
            bound = self._bounds.relative * size
        holders = self._holders(name, tensor)
        holder = -1 if holders is None or error <= bound else int(holders.flatten()[int(difference.argmax())])
        self.found.append(Difference(step, kind, name, error, bound, size, holder))

    def _holders(self, name: str, tensor: Tensor) -> Tensor | None:
        """Which rank holds each element, found once per layout: every rank has to ask at the same time."""
        layout = (name, str(getattr(tensor, "placements", "")))
        if layout not in self._owners:
            self._owners[layout] = owners(tensor, self._rank)
        return self._owners[layout]
