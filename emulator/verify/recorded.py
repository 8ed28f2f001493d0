"""A recorded step that can be executed: the trace, and its ``exec`` section with the tensors beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from emulator import assets
from emulator.capture.fingerprint import Fingerprint
from emulator.errors import InputError
from emulator.trace.check import load
from emulator.trace.io import SUFFIXES
from emulator.trace.mesh import program_of_rank
from emulator.trace.messages import COMMUNICATION
from emulator.trace.schema import Op, Trace

CARRIED_OUT = frozenset({*COMMUNICATION, "compute", "host_sync"})  # kinds of ops that read or write


class Call(msgspec.Struct, forbid_unknown_fields=True):
    """One op as it was called. Arguments are JSON; tensors are ``{"tensor": index}``, ``out`` lists those returned.

    ``read`` has fingerprints of tensors that only the live run knows (what the optimizer was given), by tensor index.
    """

    op: int
    call: str
    args: list[Any]
    kwargs: dict[str, Any]
    out: list[int]
    read: dict[int, Fingerprint] = {}


class Section(msgspec.Struct):
    """One rank's side of the ``exec`` section: ``tensors`` are [storage, offset, shape, stride, dtype], ``storages``
    bytes by number, ``after`` fingerprints of the storages that outlive the step, as the live run left them;
    ``numerics`` of the machine that it ran on."""

    tensors: list[tuple[int, int, list[int], list[int], str]]
    storages: dict[int, int]
    calls: list[Call]
    after: dict[int, Fingerprint]
    numerics: str


@dataclass(frozen=True)
class Recorded:
    """A trace with state. ``contents`` is the safetensors file."""

    trace: Trace
    name: str
    contents: Path

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.trace.world_size

    def ops(self, rank: int) -> dict[int, Op]:
        """The recorded ops of a rank, by id, in issue order."""
        return self._ops[self.program[rank]]

    @cached_property
    def program(self) -> list[int]:
        """The program of each rank."""
        found: list[int] = program_of_rank(self.trace).tolist()
        return found

    @cached_property
    def _ops(self) -> list[dict[int, Op]]:
        return [{op.id: op for op in p.ops if isinstance(op, Op)} for p in self.trace.programs]


def read_recorded(name: str) -> Recorded:
    """Load a trace that was recorded with state, by path or name. Raises InputError if it cannot be executed."""
    path = assets.find("traces", name, SUFFIXES)
    trace = load(path)
    with_state = "record it with `emu record --with-state --nproc N ...`"
    if trace.exec is None:
        raise InputError("holds no tensors to execute it with", source=name, remedy=with_state)
    if trace.blocks:
        raise InputError("has blocks; only traces as they were recorded can be executed", source=name)
    if count := trace.meta.notes.get("random_ops_not_repeatable"):
        raise InputError(f"{count} ops drew random numbers and cannot be repeated", source=name)
    if count := trace.meta.notes.get("arguments_not_recorded"):
        raise InputError(f"{count} arguments of ops could not be recorded", source=name)
    contents = path.with_name(str(trace.exec["file"]))
    if not contents.is_file():
        raise InputError(f"{contents.name} is not beside it", source=name, remedy=with_state)
    return Recorded(trace=trace, name=name, contents=contents)


def section_of(recorded: Recorded, rank: int) -> Section:
    """What one rank executes. Raises InputError if the section is malformed."""
    assert recorded.trace.exec is not None
    for section in recorded.trace.exec["sections"]:
        if rank in section["ranks"]:
            place = section["ranks"].index(rank)
            own = {key: _mine(value, place) for key, value in section.items() if key in Section.__struct_fields__}
            try:
                return msgspec.convert(own, Section, strict=False)
            except msgspec.ValidationError as error:
                raise InputError(f"exec: {error}", source=recorded.name) from None
    raise InputError(f"exec: nothing for rank {rank}", source=recorded.name)


def _mine(value: Any, place: int) -> Any:
    """One rank's side of a value in which ranks may differ."""
    if isinstance(value, dict):
        if set(value) == {"per_rank"}:
            return value["per_rank"][place]
        return {key: _mine(item, place) for key, item in value.items()}
    return [_mine(item, place) for item in value] if isinstance(value, list) else value


def describe(op: Op) -> str:
    """An op for a message: ``op 412 aten.mm (layers.2.attention, backward)``."""
    where = ", ".join(str(part) for part in (op.module, op.phase) if part)
    return f"op {op.id} {op.name or op.collective or op.kind}" + (f" ({where})" if where else "")
