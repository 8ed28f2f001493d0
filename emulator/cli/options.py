"""Options and helpers that several commands share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from emulator import assets
from emulator.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

_QUIET_SECONDS = 2.0  # work shorter than this shows no progress


def parse_overrides(settings: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` options as a dict."""
    found = {}
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InputError(
                f"{text!r} is not KEY=VALUE", source="--set", remedy="for example --set nic.bandwidth=50GB/s"
            )
        found[key] = value
    return found


def seconds_of(text: str, option: str) -> float:
    """A time given on the command line, such as ``12 ms``."""
    from emulator.units import parse_seconds  # noqa: PLC0415

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InputError(str(error), source=option) from None


def trace_file(name: str) -> Path | None:
    """The file that the name of a trace means, if there is one: to be kept from being overwritten."""
    from emulator.trace.io import SUFFIXES  # noqa: PLC0415

    return assets.located("traces", name, SUFFIXES)


def topology_file(name: str) -> Path | None:
    """The same of a topology."""
    from emulator.topology.document import SUFFIXES  # noqa: PLC0415

    return assets.located("topologies", name, SUFFIXES)


def console(width: int | None = None, *, stderr: bool = False) -> Console:
    """A rich console that respects NO_COLOR, pipes and the terminal's encoding."""
    from rich.console import Console  # noqa: PLC0415  (rich costs start-up time)

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the reader has had enough; the command line knows what to do

    return Piped(width=width, stderr=stderr, highlight=False, soft_wrap=False)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A callback ``(done, total)`` that shows a bar on stderr once the work has taken two seconds.

    None where stderr is not a terminal.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.progress import Progress, TaskID  # noqa: PLC0415

    bar = Progress(console=console(stderr=True), transient=True)
    task: TaskID | None = None
    began = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            if time.monotonic() - began < _QUIET_SECONDS:
                return
            bar.start()
            task = bar.add_task(what)
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if task is not None:
            bar.stop()
