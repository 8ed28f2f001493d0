"""What models and optimizers hold: the parameters, gradients, buffers and optimizer state of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from emulator.capture.storages import Storages
from emulator.capture.tags import Tags


class Holdings:
    """Looks through the models and optimizers that the hooks met. Gradients come and go, so they are looked for as a
    model first runs, and as an optimizer begins its step."""

    def __init__(self, storages: Storages, tags: Tags) -> None:
        self._storages = storages
        self._tags = tags
        self._gradients: set[int] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note gradients meanwhile."""

        def optimizes(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._note(p for group in optimizer.param_groups for p in group["params"])

        handle = register_optimizer_step_pre_hook(optimizes)
        self._tags.met = lambda root: self._note(root.parameters())
        try:
            yield
        finally:
            handle.remove()
            self._tags.met = None

    def _note(self, parameters: Iterator[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                self._gradients.add(self._storages.id_of(_local(parameter.grad))[0])

    def found(self) -> tuple[dict[int, str], set[int], dict[int, int]]:
        """What each storage that is held, or was a gradient, is for; which are held now; and bytes of those that no op
        used (they have numbers below 0)."""
        what: dict[int, str] = dict.fromkeys(self._gradients, "gradient")
        held: set[int] = set()
        unseen: dict[int, int] = {}
        keys: set[int] = set()
        for kind, tensor in self._tensors():
            storage = _local(tensor).untyped_storage()
            number = self._storages.number_of(storage)
            if number is None:
                if storage._cdata in keys:
                    continue
                keys.add(storage._cdata)
                number = -len(keys)
                unseen[number] = storage.nbytes()
            what[number] = kind
            held.add(number)
        return what, held, unseen

    def size(self) -> tuple[int, str, int]:
        """Parameters of the whole models, their dtype, number of layers."""
        parameters = self._parameters()
        layers = {path for root in self._tags.roots for path, module in root.named_modules() if _is_layer(path, module)}
        dtype = next((str(p.dtype).removeprefix("torch.") for p in parameters), "")
        return sum(p.numel() for p in parameters), dtype, len(layers)

    def _parameters(self) -> list[nn.Parameter]:
        found = {id(p): p for root in self._tags.roots for p in root.parameters()}
        for optimizer in self._tags.optimizers:
            found.update((id(p), p) for group in optimizer.param_groups for p in group["params"])
        return list(found.values())

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All that is held; a storage that is two things comes last as the one that it is called."""
        for root in self._tags.roots:
            for buffer in root.buffers():
                yield "buffer", buffer
        for optimizer in self._tags.optimizers:
            for state in optimizer.state.values():
                yield from (("optimizer", value) for value in state.values() if isinstance(value, torch.Tensor))
        for parameter in self._parameters():
            if parameter.grad is not None:
                yield "gradient", parameter.grad
            yield "parameter", parameter


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _is_layer(path: str, module: nn.Module) -> bool:
    """One of a numbered row of modules that is not inside another one: ``layers.3``, but not ``layers.3.experts.1``."""
    return path.rpartition(".")[2].isdigit() and sum(part.isdigit() for part in path.split(".")) == 1
