"""What is needed to execute a recorded step again, op by op, on real tensors: calls, and contents before the step.

Per rank: every op's overload and arguments, tensors as places in storages, and the bytes of each storage that the step
reads before anything in the step wrote it. Contents go to a safetensors file; nothing is pickled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch.utils._pytree import tree_leaves

from emulator.capture import accessors
from emulator.capture.classify import dtype_name, tensors
from emulator.capture.collectives import named_arguments
from emulator.capture.fingerprint import Fingerprint
from emulator.capture.numerics import fingerprint, numerics
from emulator.capture.session import Session
from emulator.capture.tape import Tape
from emulator.files import write_bytes


class State:
    """Hangs in a session's recorder and keeps calls and contents of one rank."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tape: Tape = session.tape
        self._tags = session.tags
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._calls: list[dict[str, Any]] = []
        self._sizes: dict[int, int] = {}
        self._outside: dict[int, torch.UntypedStorage] = {}  # storages that were there before the step
        self._contents: dict[int, torch.Tensor] = {}
        self._dtypes: dict[int, torch.dtype] = {}  # of the outside storages, as they were first met
        self._given: dict[int, Fingerprint] = {}  # what the optimizer is given by the op that runs now, by tensor
        self._optimized: set[int] = set()  # storages that the optimizer wrote
        session.recorder.before = self._before
        session.recorder.after = self._after

    def section(self) -> dict[str, Any]:
        """The ``exec`` section of this rank. ``after``: fingerprints of the outside storages as the step left them."""
        after = {str(n): fingerprint(typed(storage, self._dtypes[n])) for n, storage in sorted(self._outside.items())}
        return {
            "numerics": numerics(),
            "tensors": [list(key) for key in self._tensors],
            "storages": {str(number): size for number, size in sorted(self._sizes.items())},
            "calls": [call | {"op": self._session.moved[call["op"]]} for call in self._calls],
            "after": msgspec.to_builtins(after),
        }

    def contents(self) -> bytes:
        """Contents of the outside storages before the step, as a safetensors document of bytes by storage number."""
        document: bytes = save_tensors({str(number): content for number, content in self._contents.items()})
        return document

    def _before(self, _func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for tensor in tensors((args, kwargs)):
            number, is_new = self._tape.storages.id_of(tensor)
            if is_new:
                storage = tensor.untyped_storage()
                self._outside[number] = storage
                self._dtypes[number] = tensor.dtype
                self._contents[number] = bytes_of(storage).clone()
        self._given = {}
        if self._tags.now()[0] == "optimizer":  # gradients above all: they do not outlive the step
            self._given = {
                self._place(tensor): fingerprint(tensor)
                for tensor in tensors((args, kwargs))
                if self._tape.storages.id_of(tensor)[0] not in self._optimized
            }

    def _after(self, op: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if (
            torch.Tag.nondeterministic_seeded in func.tags
            and named_arguments(func, args, kwargs).get("dropout_p") != 0.0
        ):
            self._tape.notes["random_ops_not_repeatable"] += 1
        if self._tape.ops[op].phase == "optimizer":
            self._optimized.update(storage for storage, _ in self._tape.ops[op].writes)  # type: ignore[misc]
        self._calls.append(
            {
                "op": op,  # on the tape
                "call": f"{func.namespace}.{func._overloadpacket.__name__}.{func._overloadname}",
                "args": [self._encode(arg) for arg in args],
                "kwargs": {name: self._encode(value) for name, value in kwargs.items()},
                "out": [self._place(leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)],
                **({"read": msgspec.to_builtins(self._given, str_keys=True)} if self._given else {}),
            }
        )

    def _place(self, tensor: torch.Tensor) -> int:
        """Index of a tensor's place: [storage, offset, shape, stride, dtype]; offset in elements."""
        number, _ = self._tape.storages.id_of(tensor)
        self._sizes[number] = max(self._sizes.get(number, 0), tensor.untyped_storage().nbytes())
        place = (
            number, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor.dtype)
        )  # fmt: skip
        return self._tensors.setdefault(place, len(self._tensors))

    def _encode(self, value: Any) -> Any:
        """An argument as JSON: what JSON lacks is an object with one key that says what it is."""
        if isinstance(value, torch.Tensor):
            return {"tensor": self._place(value)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, list | tuple):
            return [self._encode(item) for item in value]
        if accessors.is_boxed(value, "ProcessGroup"):
            return {"group": ",".join(map(str, accessors.group_ranks(value)))}
        if accessors.is_boxed(value, "ReduceOp"):
            return {"reduce_op": accessors.reduce_op(value)}
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        self._tape.notes["arguments_not_recorded"] += 1
        return {"unknown": type(value).__name__}


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage as bytes, a view."""
    return typed(storage, torch.uint8)


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """A storage as elements of a dtype, a view."""
    return torch.empty(0, dtype=dtype).set_(storage)


def merge_sections(
    sections: Sequence[dict[str, Any]], programs: Sequence[int], names: dict[str, str], file: str
) -> dict[str, Any]:
    """One ``exec`` section for all ranks; ``programs`` says which program each rank runs, ``names`` renames groups.

    Ranks that run one program share one section, in which ``{"per_rank": [...]}`` stands where they differ.
    """
    merged = []
    for program in sorted(set(programs)):
        ranks = [rank for rank, mine in enumerate(programs) if mine == program]
        same = _merge([_renamed(sections[rank], names) for rank in ranks])
        merged.append({"program": program, "ranks": ranks, **same})
    return {"file": file, "sections": merged}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"group"}:
            return {"group": names.get(value["group"], value["group"])}
        return {key: _renamed(item, names) for key, item in value.items()}
    return [_renamed(item, names) for item in value] if isinstance(value, list) else value


def _merge(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(value == first for value in values[1:]):
        return first
    if all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
        return {key: _merge([value[key] for value in values]) for key in first}
    if all(isinstance(value, list) and len(value) == len(first) for value in values):
        return [_merge(items) for items in zip(*values, strict=True)]
    return {"per_rank": list(values)}


def write_contents(documents: Sequence[bytes], path: Path) -> None:
    """Write the contents of all ranks to one safetensors file, named ``RANK.STORAGE``."""
    together = {
        f"{rank}.{number}": content
        for rank, document in enumerate(documents)
        for number, content in load_tensors(document).items()
    }
    write_bytes(path, save_tensors(together))
