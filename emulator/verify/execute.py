"""Executing a recorded step on real tensors in one rank's process, in any order of starts and ends.

At its start a unit reads: what it touches is copied, and its ops run on the copies (communication is issued). At its
end it publishes: what it wrote is copied back. Between the two other units see neither. Where an end follows its start
at once nothing can come between, and the copies are saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from emulator.capture.collectives import C10D
from emulator.capture.fingerprint import Fingerprint
from emulator.capture.numerics import digest, fingerprint
from emulator.capture.state import bytes_of, typed
from emulator.trace.messages import COMMUNICATION
from emulator.trace.schema import Op
from emulator.verify.messages import Messenger
from emulator.verify.order import Event, Unit
from emulator.verify.recorded import Call, Section, describe

Tensor = Any
_POISON = 0xFF  # bytes of memory nobody has written: not a number in every floating-point type


@dataclass
class Executed:
    """What one execution left: digests of what each op wrote (of what a host_sync read), fingerprints of what outlives
    the step and of what the optimizer was given (by op and tensor), and ops that could not run on what they were given.
    """

    written: dict[int, str] = field(default_factory=dict)
    after: dict[int, Fingerprint] = field(default_factory=dict)
    given: dict[tuple[int, int], Fingerprint] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class Memory:
    """The storages of a rank: those that outlive the step with their contents, all others poisoned."""

    def __init__(self, section: Section, contents: Mapping[int, Tensor]) -> None:
        self._section = section
        self.storages = {number: _poisoned(size) for number, size in section.storages.items() if number not in contents}
        self.storages.update((number, content.clone().untyped_storage()) for number, content in contents.items())

    def tensor(self, index: int, storages: Mapping[int, Any]) -> Tensor:
        """The tensor with that index, in the storages given or, where those lack it, in memory."""
        number, offset, shape, stride, dtype = self._section.tensors[index]
        storage = storages.get(number, self.storages[number])
        return torch.empty(0, dtype=getattr(torch, dtype)).set_(storage, offset, shape, stride)

    def copies(self, indices: Sequence[int]) -> dict[int, Any]:
        """Private copies of the storages of some tensors, by number."""
        numbers = {self._section.tensors[index][0] for index in indices}
        return {number: bytes_of(self.storages[number]).clone().untyped_storage() for number in numbers}


class Executor:
    """Runs orders one after the other, each from the contents before the step."""

    def __init__(
        self, ops: Mapping[int, Op], section: Section, contents: Mapping[int, Tensor], messenger: Messenger
    ) -> None:
        self._ops = ops
        self._section = section
        self._contents = contents
        self._messenger = messenger
        self._calls = {call.op: call for call in section.calls}

    def run(self, units: Sequence[Unit], events: Sequence[Event]) -> Executed:
        """Carry out every unit by its events."""
        memory = Memory(self._section, self._contents)
        done = Executed()
        running: dict[int, _Running] = {}
        with torch.no_grad():
            for place, (unit, ends) in enumerate(events):
                if not ends:
                    direct = place + 1 < len(events) and events[place + 1] == (unit, True)
                    running[unit] = self._start(units[unit], memory, done, direct=direct)
                else:
                    self._end(running.pop(unit), memory, done)
        done.after = {
            number: fingerprint(typed(memory.storages[number], getattr(torch, live.dtype)))
            for number, live in self._section.after.items()
        }
        return done

    def _start(self, unit: Unit, memory: Memory, done: Executed, *, direct: bool) -> _Running:
        calls = [self._calls[op] for op in unit.ops if op in self._calls]
        touched = [index for call in calls for index in (*tensor_indices((call.args, call.kwargs)), *call.out)]
        private = {} if direct else memory.copies(touched)
        running = _Running(private)
        for call in calls:
            op = self._ops[call.op]
            for index in call.read:
                done.given[op.id, index] = fingerprint(memory.tensor(index, private))
            try:
                self._carry_out(op, call, memory, running)
                if not running.works:
                    seen = tensor_indices(call.args) if op.kind == "host_sync" else written(op, call)
                    done.written[op.id] = _digest_of(memory, running.private, seen)
            except (RuntimeError, IndexError, ValueError) as error:
                if op.kind in COMMUNICATION:
                    raise
                done.failed.append(f"{describe(op)}: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
        return running

    def _carry_out(self, op: Op, call: Call, memory: Memory, running: _Running) -> None:
        def value(encoded: Any) -> Any:
            return decode(encoded, lambda index: memory.tensor(index, running.private))

        args = [value(argument) for argument in call.args]
        if op.kind == "host_sync":  # what it told the host is in the recording: it is only seen to read the same again
            return
        if op.kind in COMMUNICATION:
            works, results = self._messenger.issue(op, call, args)
            running.works += works
            running.results += list(zip(call.out, results, strict=False))
        else:
            function = overload(call)
            out = function(*args, **{name: value(item) for name, item in call.kwargs.items()})
            results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
            for index, result in zip(call.out, results, strict=True):
                _store(memory.tensor(index, running.private), result)
        running.written.append((op.id, written(op, call)))

    def _end(self, running: _Running, memory: Memory, done: Executed) -> None:
        for work in running.works:
            work.wait()
        for index, result in running.results:
            _store(memory.tensor(index, running.private), result)
        for op, indices in running.written:
            if running.works:
                done.written[op] = _digest_of(memory, running.private, indices)
            if running.private:
                for index in indices:
                    memory.tensor(index, {}).copy_(memory.tensor(index, running.private))


@dataclass
class _Running:
    """A unit between its start and its end. ``written``: its ops in order, and the tensors that each writes."""

    private: dict[int, Any]
    works: list[Any] = field(default_factory=list)
    results: list[tuple[int, Tensor]] = field(default_factory=list)
    written: list[tuple[int, list[int]]] = field(default_factory=list)


def tensor_indices(encoded: Any) -> list[int]:
    """Indices of all tensors in encoded arguments."""
    if isinstance(encoded, dict):
        if set(encoded) == {"tensor"}:
            return [encoded["tensor"]]
        return [index for item in encoded.values() for index in tensor_indices(item)]
    if isinstance(encoded, list | tuple):
        return [index for item in encoded for index in tensor_indices(item)]
    return []


def decode(encoded: Any, tensor: Any) -> Any:
    """An encoded argument as a value; ``tensor`` makes tensors from indices."""
    if isinstance(encoded, list):
        return [decode(item, tensor) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((kind, inner),) = encoded.items()
    if kind == "tensor":
        return tensor(inner)
    if kind == "torch":
        return getattr(torch, inner)
    if kind == "device":
        return torch.device(inner)
    return float(inner) if kind == "float" else None  # groups and reduce ops come with the op itself


def overload(call: Call) -> Any:
    """The torch operator of a call."""
    namespace, name, variant = call.call.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


def written(op: Op, call: Call) -> list[int]:
    """Indices of the tensors that a call writes: those its schema declares, and what it returns."""
    namespace, name, _ = call.call.split(".")
    if op.kind == "send":
        return []
    if namespace == "c10d":  # their schemas declare nothing
        filled = ("tensors",) if op.kind == "recv" else C10D[name][1]
        return [index for argument, value in _named(call) if argument.name in filled for index in tensor_indices(value)]
    if name == "all_gather_copy_in":  # the second result is the whole buffer, of which it filled its part
        return call.out[:1]
    declared = [
        index
        for argument, value in _named(call)
        if argument.alias_info is not None and argument.alias_info.is_write
        for index in tensor_indices(value)
    ]
    return declared + [index for index in call.out if index not in declared]


def _named(call: Call) -> Iterator[tuple[Any, Any]]:
    arguments = overload(call)._schema.arguments
    yield from zip(arguments, call.args, strict=False)
    yield from ((argument, call.kwargs[argument.name]) for argument in arguments if argument.name in call.kwargs)


def _store(place: Tensor, result: Tensor) -> None:
    if place.data_ptr() != result.data_ptr() or place.shape != result.shape:
        place.copy_(result)


def _poisoned(size: int) -> Any:
    return torch.full((size,), _POISON, dtype=torch.uint8).untyped_storage()


def _digest_of(memory: Memory, private: Mapping[int, Any], indices: Sequence[int]) -> str:
    """One digest of several tensors."""
    return " ".join(digest(memory.tensor(index, private)) for index in indices)
