"""Wait points of ``dist`` works: ``Work.wait`` is not an op, so it is patched while recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from emulator.capture import accessors
from emulator.capture.streams import StreamPlan, patched
from emulator.capture.tags import Tags
from emulator.capture.tape import Tape


class Waits:
    """Which op each asynchronous work object stands for, and the ``wait`` ops of those that are waited on."""

    def __init__(self, tape: Tape, tags: Tags, streams: StreamPlan) -> None:
        self._tape = tape
        self._tags = tags
        self._streams = streams
        self._ops: dict[int, tuple[int | None, Any]] = {}  # id of the work -> its op, and the work itself, kept alive

    def issued(self, boxed: Any, op: int, *, is_async: bool) -> None:
        """Note the work that a c10d op returned. A synchronous op needs no wait: its stream waits by itself."""
        work = accessors.work(boxed)
        self._ops[id(work)] = (op if is_async else None, work)

    @contextmanager
    def recording(self, inside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Patch ``Work.wait``; the original comes back on the way out. The original runs in ``inside()``: gloo copies
        results while it waits, with ops that a GPU's backend does not have."""
        work_class = accessors.work_class()
        original = work_class.wait

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            with inside():
                result = original(work, *args, **kwargs)
            op, _ = self._ops.get(id(work), (-1, None))
            if op == -1:
                self._tape.notes["waits_unmatched"] += 1
            elif op is not None:
                self._tape.wait(self._streams.current(), op, self._tags.fields())
            return result

        with patched(work_class, "wait", wait):
            yield
