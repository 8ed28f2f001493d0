"""Wait points of ``dist`` works: ``Work.wait`` is not an op, so it is patched while recording."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from emulator.capture import accessors
from emulator.capture.patching import patched
from emulator.capture.streams import StreamPlan
from emulator.capture.tags import Tags
from emulator.capture.tape import Tape
from emulator.trace.schema import Op


class Waits:
    """Which op each asynchronous work object stands for, and the ``wait`` ops of those that are waited on."""

    def __init__(self, tape: Tape, tags: Tags, streams: StreamPlan) -> None:
        self._tape = tape
        self._tags = tags
        self._streams = streams
        self._ops: dict[int, tuple[int | None, weakref.ref[Any]]] = {}  # id of the work -> its op, and which work it is
        self._unwaited: dict[int, Any] = {}  # kept alive until waited for: later its tensors may go
        self._open: dict[int, int] = {}  # storage -> asynchronous op that fills it, not waited for yet

    def issued(self, boxed: Any, op: int, *, is_async: bool) -> None:
        """Note the work that a c10d op returned. A synchronous op needs no wait: its stream waits by itself."""
        work = accessors.work(boxed)
        self._ops[id(work)] = (op if is_async else None, weakref.ref(work))
        self._unwaited[id(work)] = work
        if is_async:
            self._open.update((storage, op) for storage, _ in self._tape.ops[op].writes)  # type: ignore[misc]

    def before(self, storages: Iterable[int]) -> None:
        """An op is about to use these storages. If a collective fills one and nobody was seen waiting, somebody was not
        seen (DDP waits in C++, for each bucket before it copies out of it): the wait is written here."""
        for storage in storages:
            op = self._open.pop(storage, None)
            if op is not None:
                self._tape.notes["waits_derived"] += 1
                self._tape.wait(self._streams.current(), op, self._fields(self._tape.ops[op]))

    def _fields(self, awaited: Op) -> dict[str, Any]:
        """Tags of a wait: where it happens; for a message, which a pipeline waits for between its chunks, those of
        the message."""
        if awaited.kind == "collective":
            return self._tags.fields()
        return {name: getattr(awaited, name) for name in ("phase", "module", "layer", "stage", "microbatch")}

    @contextmanager
    def recording(self, inside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Patch ``Work.wait``; the original comes back on the way out. The original runs in ``inside()``: gloo copies
        results while it waits, with ops that a GPU's backend does not have."""

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
                with inside():
                    result = original(work, *args, **kwargs)
                op, known = self._ops.get(id(work), (None, None))
                self._unwaited.pop(id(work), None)
                if known is None or known() is not work:
                    self._tape.notes["waits_unmatched"] += 1
                elif op is not None:
                    for storage, _ in self._tape.ops[op].writes:
                        self._open.pop(storage, None)  # type: ignore[arg-type]
                    self._tape.wait(self._streams.current(), op, self._fields(self._tape.ops[op]))
                return result

            return wait

        with ExitStack() as patches:
            for kind in accessors.work_classes():
                patches.enter_context(patched(kind, "wait", around(kind.wait)))
            yield
