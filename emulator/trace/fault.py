"""A fault of a trace, as the checks report it."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """What is wrong, and where in the file."""

    place: str
    reason: str
