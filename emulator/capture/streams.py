"""Streams and events: those of a GPU, or, seen on CPU, the stream plan of FSDP2.

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
        self._device = accessors.stream_device()
        self._names: dict[Any, str] = {}  # by stream
        self._roles: Counter[str] = Counter()
        self._marks: weakref.WeakKeyDictionary[Any, int | None] = weakref.WeakKeyDictionary()

    def current(self) -> str:
        """Name of the stream that an op issued now runs on."""
        return self.name(self._device.current())

    def name(self, stream: Any) -> str:
        """Name of a stream: the role FSDP2 gives it (the second model's end in ``.1``), or a number."""
        if stream == self._device.default():
            return COMPUTE
        if stream not in self._names:
            role = accessors.fsdp_streams(self._tags.roots).get(stream, "stream")
            self._names[stream] = f"{role}.{self._roles[role]}" if self._roles[role] else role
            self._roles[role] += 1
        return self._names[stream]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Patch the device's streams and events; what was there comes back on the way out."""
        with self._on_cuda() if self._device.is_cuda else self._on_cpu():
            yield

    @contextmanager
    def _on_cuda(self) -> Iterator[None]:
        """CUDA's do what they always do, and are noted."""
        event_type = accessors.cuda_event_type()
        record_event, wait_for_event = event_type.record, event_type.wait

        def record(event: Any, stream: Any = None) -> None:
            record_event(event, stream)
            self._mark(event, stream)

        def wait(event: Any, stream: Any = None) -> None:
            wait_for_event(event, stream)
            self._wait_for(event, stream)

        with patched(event_type, "record", record), patched(event_type, "wait", wait):
            yield

    @contextmanager
    def _on_cpu(self) -> Iterator[None]:
        """The CPU's do nothing, also while recording."""
        stream_type, event_type = accessors.cpu_stream_types()

        def wait_stream(stream: Any, other: Any) -> None:
            self._wait(self.name(stream), self._tape.last_on(self.name(other)))

        def wait_event(stream: Any, event: Any) -> None:
            self._wait_for(event, stream)

        def record_event(stream: Any, event: Any = None) -> Any:
            event = event_type() if event is None else event
            self._mark(event, stream)
            return event

        def record(event: Any, stream: Any = None) -> None:
            self._mark(event, stream)

        def wait(event: Any, stream: Any = None) -> None:
            self._wait_for(event, stream)

        with (
            patched(stream_type, "wait_stream", wait_stream),
            patched(stream_type, "wait_event", wait_event),
            patched(stream_type, "record_event", record_event),
            patched(event_type, "record", record),
            patched(event_type, "wait", wait),
        ):
            yield

    def _mark(self, event: Any, stream: Any) -> None:
        """An event is recorded on a stream, None: on the current one."""
        self._marks[event] = self._tape.last_on(self.current() if stream is None else self.name(stream))

    def _wait_for(self, event: Any, stream: Any) -> None:
        """A stream, None: the current one, waits for an event."""
        self._wait(self.current() if stream is None else self.name(stream), self._marks.get(event))

    def _wait(self, stream: str, target: int | None) -> None:
        if target is not None:
            self._tape.wait(stream, target, self._tags.fields())
