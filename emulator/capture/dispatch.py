"""The recorder: a ``TorchDispatchMode`` that sees every op below autograd and DTensor, and writes it on the tape.

It only looks: ops run as they would without it, and their time on this machine is never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from emulator.capture import accessors, classify, collectives
from emulator.capture.classify import nbytes, tensors
from emulator.capture.patching import patched
from emulator.capture.pipelines import Pipelines
from emulator.capture.streams import StreamPlan
from emulator.capture.tags import Tags
from emulator.capture.tape import GROUP_STREAM, Tape, Touched
from emulator.capture.waits import Waits
from emulator.trace.schema import Op

IGNORED = frozenset({"prim", "profiler"})
COMMUNICATION = frozenset({"c10d", "_c10d_functional"})
# Called for each op before and after it ran: (func, args, kwargs) before; (op ids, func, args, kwargs, out) after.
Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[int, Any, tuple[Any, ...], dict[str, Any], Any], None]


class DispatchRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Records while it is entered. ``groups`` collects the ranks of each communicator by the name used in ops."""

    def __init__(self, tape: Tape, tags: Tags, streams: StreamPlan, waits: Waits, pipelines: Pipelines) -> None:
        super().__init__()
        self.tape = tape
        self.groups: dict[str, tuple[int, ...]] = {}
        self.before: Before | None = None  # verification state hangs in here
        self.after: After | None = None
        self._tags = tags
        self._streams = streams
        self._waits = waits
        self._pipelines = pipelines
        self._paused = 0
        self._issued: dict[int, int] = {}  # storage -> functional collective that fills it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Wrappers take themselves apart, and what they are made of comes here again.
        if any(issubclass(kind, DTensor | AsyncCollectiveTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if self._paused or func.namespace in IGNORED:
            return func(*args, **kwargs)
        if self.before is not None:
            self.before(func, args, kwargs)
        inputs = tensors((args, kwargs))
        for tensor in inputs:
            self.tape.storages.id_of(tensor)
        out = func(*args, **kwargs)
        index = self._record(func, args, kwargs, out, inputs)
        if self.after is not None and index is not None:
            self.after(index, func, args, kwargs, out)
        return out

    @contextmanager
    def host_reads(self) -> Iterator[None]:
        """Patch ``Tensor.tolist``, which reads memory without any op (``item`` is an op)."""
        with ExitStack() as patches:
            for kind in accessors.tensor_types():
                patches.enter_context(patched(kind, "tolist", self._read_by_host(kind.tolist)))
            yield

    def _read_by_host(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def tolist(tensor: torch.Tensor) -> Any:
            if not self._paused and not isinstance(tensor, DTensor | AsyncCollectiveTensor):
                self._host_sync("aten.tolist", [tensor])
            with self.paused():
                return original(tensor)

        return tolist

    def _host_sync(self, name: str, inputs: list[torch.Tensor]) -> int:
        self.tape.notes["host_syncs"] += 1
        reads = [(self.tape.storages.id_of(t)[0], nbytes(t)) for t in inputs]
        op = Op(id=0, kind="host_sync", name=name, stream=self._streams.current(), **self._tags.fields())
        return self.tape.add(op, reads=reads)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing meanwhile: what runs is no work of the job (a backend's own copies, shape inference)."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any, inputs: list[torch.Tensor]) -> int | None:
        """Write down one op that ran; None if it is not work of its own (a view, an allocation)."""
        name = func._overloadpacket.__name__
        if func.namespace in COMMUNICATION:
            return self._communication(name, func, args, kwargs, out, inputs)
        self._waits.before(self.tape.storages.id_of(tensor)[0] for tensor in inputs)
        if name in classify.HOST_SYNCS:
            return self._host_sync(f"aten.{name}", inputs)
        outputs = tensors(out)
        if name in classify.SAME_MEMORY:
            self.tape.storages.same(outputs[0], self.tape.storages.id_of(inputs[0])[0])
        self._allocated(outputs)
        if name in classify.ALLOCATIONS:
            self.tape.notes["allocations_skipped"] += 1
            return None
        reads, writes = self._accesses(name, func, args, kwargs, inputs, outputs)
        if not writes:
            self.tape.notes["views_skipped"] += 1
            return None
        phase, place = self._tags.now()
        attention = classify.attention_of(func, args, kwargs)
        first = next((t for t in (*inputs, *outputs) if t.is_floating_point()), (*inputs, *outputs)[0])
        op = Op(
            id=0,
            kind="compute",
            op_class=classify.op_class(name, "optimizer" if phase == "optimizer" else place.context),
            name=f"{func.namespace}.{name}",
            stream=self._streams.current(),
            flops=classify.flops_of(func, args, kwargs, out, attention),
            bytes_read=sum(size for _, size in reads),
            bytes_written=sum(size for _, size in writes),
            shapes=[list(t.shape) for t in inputs],
            dtype=classify.dtype_name(first.dtype),
            attention=attention,
            **self._tags.fields(),
        )
        return self.tape.add(op, reads=reads, writes=writes)

    def _allocated(self, outputs: list[torch.Tensor]) -> None:
        """What an op returns and nobody has seen is new memory, of the stream on which the op runs."""
        for tensor in outputs:
            self.tape.storages.allocated(tensor, self._streams.current())

    def _accesses(
        self, name: str, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> tuple[Touched, Touched]:
        """Storages read and written, with bytes. Nothing is written by an op whose results are views of its inputs."""
        ids = self.tape.storages.id_of
        reads = [(ids(t)[0], nbytes(t)) for t in inputs]
        if name == "all_gather_copy_in":  # fills its part of the buffer, without saying so
            part, _ = outputs
            buffer = collectives.named_arguments(func, args, kwargs)["all_gather_output"]
            sources = [(ids(t)[0], nbytes(t)) for t in inputs if t is not buffer]
            return sources, [(ids(part)[0], nbytes(part))]
        if name == "index_put_" and (changed := classify.changed_bytes(*args, **kwargs)) is not None:
            target = [(ids(args[0])[0], changed)]
            adds = collectives.named_arguments(func, args, kwargs)["accumulate"]
            return reads[1:] + (target if adds else []), target
        if name in classify.LOOKUPS:
            found = sum(nbytes(t) for t in outputs)
            reads[0] = (reads[0][0], min(reads[0][1], found))
        schema = func._schema
        filled = [
            tensor
            for argument, value in zip(schema.arguments, _in_order(schema.arguments, args, kwargs), strict=True)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors(value)
        ]
        held = {storage for storage, _ in reads}
        writes = [(ids(t)[0], nbytes(t)) for t in filled]
        writes += [(ids(t)[0], nbytes(t)) for t in outputs if ids(t)[0] not in held]
        if "out" in kwargs or name in classify.OVERWRITING:  # overwritten, not read
            only_filled = {id(t) for t in filled}
            reads = [(ids(t)[0], nbytes(t)) for t in inputs if id(t) not in only_filled]
        return reads, writes

    def _communication(self, name: str, func: Any, args: Any, kwargs: Any, out: Any, inputs: Any) -> int | None:
        if name == "wait_tensor":
            storage = self.tape.storages.id_of(inputs[0])[0]
            self.tape.storages.same(tensors(out)[0], storage)
            issued = self._issued.pop(storage, None)
            self.tape.wait(self._streams.current(), issued, self._tags.fields(), touched=[storage])
            return None
        message = collectives.read(func, args, kwargs, out)
        if message is None:
            self.tape.notes["views_skipped" if name == "_wrap_tensor_autograd" else "communication_ops_skipped"] += 1
            return None
        op, issuing = message.op, self._streams.current()
        self._allocated(message.outputs)
        op.group = self._group(message.ranks)
        op.is_async = message.is_async
        op.stream = f"{GROUP_STREAM}{op.group}" if message.is_async else issuing
        if op.kind == "collective":
            fields = self._tags.fields()
        else:
            fields = self._tags.fields_of_message((*message.inputs, *message.outputs)[0])
            op.batch = self._pipelines.batch
        op = msgspec.structs.replace(op, **fields)
        last = self.tape.last_on(issuing)
        reads, writes, touched = collectives.touches(self.tape, message)
        after = [last] if message.is_async and last is not None else []
        index = self.tape.add(op, after=after, reads=reads, writes=writes, touched=touched)
        if func.namespace == "_c10d_functional":
            self._issued.update((self.tape.storages.id_of(t)[0], index) for t in message.outputs)
        else:
            boxed = out[-1] if isinstance(out, tuple | list) else out
            self._waits.issued(boxed, index, is_async=message.is_async)
        return index

    def _group(self, ranks: tuple[int, ...]) -> str:
        name = ",".join(map(str, ranks))
        self.groups.setdefault(name, ranks)
        return name


def _in_order(arguments: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The value of each argument of a schema as called, None where it was left out."""
    return [args[i] if i < len(args) else kwargs.get(argument.name) for i, argument in enumerate(arguments)]
