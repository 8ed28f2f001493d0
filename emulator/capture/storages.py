"""The storages of a step: a number for each, and from when to when it was there."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Life:
    """One lifetime of one allocation of ``size`` bytes, made on a stream.

    Times are numbers of ops recorded so far: ``born`` is None for what was there before the step, ``died`` for what
    outlives it. ``collected``: only Python's cyclic garbage collector let go of it, at a time that means nothing.
    ``resized``: it began as a storage that grew from nothing.
    """

    size: int
    stream: str = "compute"
    born: int | None = None
    died: int | None = None
    collected: bool = False
    resized: bool = False


class Storages:
    """Numbers storages, and knows the life of each. A number means one allocation with one lifetime: memory that is
    freed and used again, or resized from or to nothing (FSDP2 frees parameters that way), gets a new one.

    ``clock``: the ops recorded so far, whose number is the time.
    """

    def __init__(self, clock: Sized) -> None:
        self.lives: list[Life] = []  # by number
        self._clock = clock
        self._collecting = False  # whether the garbage collector is at work
        self._ids: dict[int, int] = {}
        self._held: Counter[int] = Counter()  # storages that bear a number
        self._ends: dict[int, weakref.finalize[Any, Any]] = {}

    def id_of(self, tensor: torch.Tensor) -> tuple[int, bool]:
        """Number of the tensor's storage, and whether it is met for the first time: then it was there before."""
        storage = tensor.untyped_storage()
        known = self._ids.get(storage._cdata)
        return (known, False) if known is not None else (self._begin(storage, Life(storage.nbytes())), True)

    def number_of(self, storage: torch.UntypedStorage) -> int | None:
        """Number of a storage, None if no op has used it."""
        return self._ids.get(storage._cdata)

    def allocated(self, tensor: torch.Tensor, stream: str) -> None:
        """An op returned this tensor: if its storage is not known, it is new."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._ids:
            self._begin(storage, Life(storage.nbytes(), stream, born=len(self._clock)))

    def same(self, tensor: torch.Tensor, number: int) -> None:
        """Give the tensor's storage a number that exists: under fake tensors some ops return a copy of what they are
        given where real ones return the very same memory."""
        storage = tensor.untyped_storage()
        if self._ids.get(storage._cdata) != number:
            self._end(storage._cdata)
            self._name(storage, number)

    def resized(self, storage: torch.UntypedStorage, size: int, stream: str) -> None:
        """A storage shrinks to nothing or grows from it: one life ends and another begins."""
        if storage._cdata not in self._ids:
            self._begin(storage, Life(storage.nbytes()))
        self._end(storage._cdata)
        self._begin(storage, Life(size, stream, born=len(self._clock), resized=True))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell what the garbage collector frees from what ends by itself; see no more ends afterwards."""
        gc.callbacks.append(self._collects)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collects)
            for end in self._ends.values():
                end.detach()
            self._ends.clear()

    def _collects(self, phase: str, _info: dict[str, int]) -> None:
        self._collecting = phase == "start"

    def _begin(self, storage: torch.UntypedStorage, life: Life) -> int:
        self.lives.append(life)
        self._name(storage, len(self.lives) - 1)
        return len(self.lives) - 1

    def _name(self, storage: torch.UntypedStorage, number: int) -> None:
        key = storage._cdata
        self._ids[key] = number
        self._held[number] += 1
        self._ends[key] = weakref.finalize(storage, self._end, key)
        self._ends[key].atexit = False

    def _end(self, key: int) -> None:
        number = self._ids.pop(key, None)
        if number is None:
            return
        self._ends.pop(key).detach()
        self._held[number] -= 1
        if not self._held[number]:
            self.lives[number].died, self.lives[number].collected = len(self._clock), self._collecting
