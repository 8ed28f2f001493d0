"""The stream plan of FSDP2, seen on CPU.

FSDP2 overlaps by streams and events, not by late waits. On a CPU it runs the very same plan on the streams of
``torch.cpu``, whose methods do nothing; recording what they are asked gives the plan of a GPU: copy-in, all-gather and
reduce-scatter streams, prefetches, and which event each stream waits for.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from emulator.capture import accessors
from emulator.capture.patching import patched
from emulator.capture.tags import Tags
from emulator.capture.tape import Tape

COMPUTE = "compute"


class StreamPlan:
    """Names streams and turns waits on events and streams into ``wait`` ops while :meth:`recording`."""

    def __init__(self, tape: Tape, tags: Tags) -> None:
        self._tape = tape
        self._tags = tags
        self._names: dict[int, str] = {}
        self._roles: Counter[str] = Counter()
        self._held: list[Any] = []  # named streams stay alive, so that an id means one stream
        self._marks: weakref.WeakKeyDictionary[Any, int | None] = weakref.WeakKeyDictionary()

    def current(self) -> str:
        """Name of the stream that an op issued now runs on."""
        stream = accessors.current_cpu_stream()
        return COMPUTE if stream is accessors.default_cpu_stream() else self.name(stream)

    def name(self, stream: Any) -> str:
        """Name of a stream: the role FSDP2 gives it (the second model's end in ``.1``), or a number."""
        if stream is accessors.default_cpu_stream():
            return COMPUTE
        key = id(stream)
        if key not in self._names:
            self._held.append(stream)
            role = accessors.fsdp_streams(self._tags.roots).get(key, "stream")
            self._names[key] = f"{role}.{self._roles[role]}" if self._roles[role] else role
            self._roles[role] += 1
        return self._names[key]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Patch ``torch.cpu``'s streams and events; what was there comes back on the way out."""
        stream_type, event_type = accessors.cpu_stream_types()

        def wait_stream(stream: Any, other: Any) -> None:
            self._wait(self.name(stream), self._tape.last_on(self.name(other)))

        def wait_event(stream: Any, event: Any) -> None:
            self._wait(self.name(stream), self._marks.get(event))

        def record_event(stream: Any, event: Any = None) -> Any:
            event = event_type() if event is None else event
            self._marks[event] = self._tape.last_on(self.name(stream))
            return event

        def record(event: Any, stream: Any = None) -> None:
            record_event(accessors.current_cpu_stream() if stream is None else stream, event)

        def wait(event: Any, stream: Any = None) -> None:
            wait_event(accessors.current_cpu_stream() if stream is None else stream, event)

        with (
            patched(stream_type, "wait_stream", wait_stream),
            patched(stream_type, "wait_event", wait_event),
            patched(stream_type, "record_event", record_event),
            patched(event_type, "record", record),
            patched(event_type, "wait", wait),
        ):
            yield

    def _wait(self, stream: str, target: int | None) -> None:
        if target is not None:
            self._tape.wait(stream, target, self._tags.fields())
