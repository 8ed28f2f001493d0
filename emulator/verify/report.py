"""What a verification found: checks, each with a verdict, and the document ``emu-verify/1`` that holds them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

SCHEMA = "emu-verify/1"
FINDINGS_KEPT = 20  # per check; a broken schedule breaks thousands of tensors

Progress = Callable[[str], None]


class Check(msgspec.Struct):
    """One statement and whether it held.

    ``compared`` counts what was compared (tensors, chunks, pairs of ops), ``largest_error`` is the largest difference
    met in the unit of ``tolerance`` (None where equality is bitwise), ``findings`` say what is wrong and where.
    """

    name: str
    subject: str
    proved: bool
    compared: int
    largest_error: float | None = None
    tolerance: str = "bitwise"
    findings: list[str] = []
    findings_left_out: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        """The check in one line, for progress."""
        verdict = "proved" if self.proved else "DISPROVED"
        return f"{self.name}: {self.subject}: {verdict}"


class Report(msgspec.Struct, tag_field="schema", tag=SCHEMA):
    """All checks of one verification. ``facts`` say what was run: ranks, topology, tolerances, versions."""

    subject: str
    proved: bool
    checks: list[Check]
    facts: dict[str, str | int | float] = {}
    seconds: float = 0.0

    def json(self) -> bytes:
        """The document, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def check(
    name: str,
    subject: str,
    findings: Sequence[str],
    compared: int,
    *,
    largest_error: float | None = None,
    tolerance: str = "bitwise",
    seconds: float = 0.0,
) -> Check:
    """A check that holds if there are no findings."""
    return Check(
        name=name,
        subject=subject,
        proved=not findings,
        compared=compared,
        largest_error=largest_error,
        tolerance=tolerance,
        findings=list(findings[:FINDINGS_KEPT]),
        findings_left_out=max(0, len(findings) - FINDINGS_KEPT),
        seconds=seconds,
    )


def report(subject: str, checks: Sequence[Check], facts: dict[str, str | int | float], seconds: float) -> Report:
    """A report that is proved if every check is, and there is one."""
    return Report(
        subject=subject,
        proved=bool(checks) and all(c.proved for c in checks),
        checks=list(checks),
        facts=facts,
        seconds=seconds,
    )


class Stopwatch:
    """Seconds since it was made, or since it was last asked."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        lap, self._last = now - self._last, now
        return lap

    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began
