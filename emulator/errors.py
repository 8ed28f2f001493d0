"""The errors a user can cause, each told in one line.

Bad input is never a traceback: code that meets it raises :class:`InputError` with the file, the place in it and the
reason; the command line prints ``emu: FILE: PLACE: REASON`` and leaves with the error's exit code.
"""

from __future__ import annotations

from typing import Any


class EmuError(Exception):
    """Something the user has to know, in one line.

    ``source`` is the file (or option) at fault, ``place`` where in it, ``reason`` what is wrong and ``remedy`` what to
    do about it, if there is something short to say.
    """

    exit_code = 2

    def __init__(self, reason: str, *, source: str = "", place: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source
        self.place = place
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.reason, self.source, self.place, self.remedy)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.place, self.reason) if part)


def _rebuild(kind: type[EmuError], reason: str, source: str, place: str, remedy: str) -> EmuError:
    """An error that another process raised."""
    return kind(reason, source=source, place=place, remedy=remedy)


class InputError(EmuError):
    """The input or the command line is wrong (exit code 2)."""


class AnswerIsNo(EmuError):
    """The input is fine and the answer is no: a replay that cannot go on, a check that found faults (exit code 1)."""

    exit_code = 1
