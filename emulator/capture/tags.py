"""Which part of the training step an op belongs to: phase, module, layer.

Forward ops belong to the module whose ``forward`` runs. A backward op belongs to the module that made its autograd
node: nodes are numbered as the forward makes them, so the numbers at which a module was entered and left tell whose a
node is, without any record per op.
"""

from __future__ import annotations

import re
import weakref
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from emulator.capture import accessors
from emulator.capture.pipelines import Pipelines

_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h|block|layer)\.(\d+)(?=\.|$)")

_WRAPPERS = re.compile(r"(^|\.)(?:module|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.|$)")

_NO_NUMBER = 1 << 63  # gradient accumulators carry the largest number there is: they stay with the op before them


@dataclass(frozen=True)
class Place:
    """A module by its path from the model, its layer number, and what kind of ops run in it."""

    module: str = ""
    layer: int | None = None
    context: str = ""  # "norm", "rope", "loss" or nothing special


OUTSIDE = Place()
LOSS = Place(context="loss")


def place_of(path: str, module: nn.Module) -> Place:
    """Place of a module at ``path`` in its model."""
    path = _WRAPPERS.sub("", path).lstrip(".")
    found = _LAYER.search(path)
    kind = type(module).__name__.lower()
    context = "norm" if "norm" in kind else "rope" if "rotary" in kind or "rope" in kind else ""
    return Place(path, int(found[1]) if found else None, context)


class Tags:
    """Follows modules, the backward pass and optimizers by torch's global hooks while it is entered."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self.roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models seen
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.met: Callable[[nn.Module], None] | None = None  # is told of each model as it first runs
        self.first_step = False  # an optimizer made its state
        self._places: weakref.WeakKeyDictionary[nn.Module, Place] = weakref.WeakKeyDictionary()
        self._stack: list[Place] = []
        self._rest = OUTSIDE  # where we are outside every module
        self._starts = [0]  # sequence numbers of autograd nodes from which on ...
        self._owners = [OUTSIDE]  # ... nodes belong to this place
        self._backward_place = OUTSIDE
        self._optimizing = 0
        self._stateless = False
        self._handles: list[Any] = []

    def __enter__(self) -> Tags:
        self._mark()
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave_optimizer),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def now(self) -> tuple[str, Place]:
        """Phase and place of an op that is issued now."""
        phase, place = self._now()
        chunk = self._pipelines.chunk
        if chunk is None or chunk.phase == "forward" or phase == "recompute":
            return phase, place
        return chunk.phase, place if phase == "backward" else OUTSIDE

    def _now(self) -> tuple[str, Place]:
        if accessors.in_backward():
            if self._stack:  # a forward inside the backward: activation checkpointing
                return "recompute", self._stack[-1]
            node = accessors.current_autograd_node()
            if node is not None:
                number = accessors.node_sequence_number(node)
                if number < _NO_NUMBER:
                    self._backward_place = self._owners[bisect_right(self._starts, number) - 1]
                return "backward", self._backward_place
            return "backward", OUTSIDE
        if self._optimizing:
            return "optimizer", OUTSIDE
        return "forward", self._stack[-1] if self._stack else self._rest

    def fields(self) -> dict[str, Any]:
        """Phase, module, layer, stage and microbatch of an op that is issued now, as fields of an op."""
        phase, place = self.now()
        fields = {"phase": phase, "module": place.module, "layer": place.layer}
        chunk = self._pipelines.chunk
        return fields | {"stage": chunk.stage, "microbatch": chunk.microbatch} if chunk is not None else fields

    def fields_of_message(self, tensor: torch.Tensor) -> dict[str, Any]:
        """The same for a send or receive of a tensor: in a pipeline, those of the chunk that it is for."""
        chunk = self._pipelines.chunk_of(tensor)
        if chunk is None or chunk is self._pipelines.chunk:
            return self.fields()
        return {"phase": chunk.phase, "stage": chunk.stage, "microbatch": chunk.microbatch}

    def _mark(self) -> None:
        place = self._stack[-1] if self._stack else self._rest
        number = accessors.sequence_number()
        if number == self._starts[-1]:
            self._owners[-1] = place
        else:
            self._starts.append(number)
            self._owners.append(place)

    def _enter_module(self, module: nn.Module, _args: Any) -> None:
        if not self._stack and module not in self._places:
            self.roots.add(module)
            for path, child in module.named_modules():
                self._places.setdefault(child, place_of(path, child))
            if self.met is not None:
                self.met(module)
        place = self._places.get(module)
        if place is None:  # made during the forward, or not registered with its parent
            parent = self._stack[-1] if self._stack else OUTSIDE
            own = place_of("", module)
            place = Place(parent.module, parent.layer, own.context or parent.context)
        elif not place.context and self._stack and self._stack[-1].context:
            place = Place(place.module, place.layer, self._stack[-1].context)
        self._stack.append(place)
        self._mark()

    def _leave_module(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
        if not self._stack and module in self.roots:
            self._rest = LOSS  # what follows the model before its backward
        self._mark()

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizing += 1
        self._rest = OUTSIDE
        self._stateless = not optimizer.state
        self.optimizers.add(optimizer)

    def _leave_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.first_step |= self._stateless and bool(optimizer.state)
        self._optimizing = max(0, self._optimizing - 1)
