"""Changes to a job or its cluster that a replay of its own can try, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emulator.report.kinds import kind_of_group
from emulator.result.schema import WhatIf

Kind = Literal["free", "faster", "even", "compute", "alone", "place", "host"]


@dataclass(frozen=True)
class Change:
    """One change to a job or its cluster; ``factor`` only for ``faster`` and ``compute``. See ``WhatIf``."""

    kind: Kind
    target: str = ""
    factor: float = 1.0


def describe(entry: WhatIf) -> str:
    """A change in words, such as ``tp communication free``."""
    if entry.change == "free":
        kind = kind_of_group(entry.target)
        name = kind if kind.lower() == entry.target.lower() else f"{kind} ({entry.target})"
        return f"{name} communication free"
    if entry.change == "faster":
        return f"{entry.target} links {entry.factor:g} times as fast"
    if entry.change == "place":
        return f"ranks placed by axes, {entry.target}"
    if entry.change == "host":
        return "every op issued at once"
    if entry.change == "alone":
        return "compute not slowed by communication"
    if entry.change == "compute":
        return f"compute {entry.factor:g} times as fast"
    return "no straggler: every op takes all ranks as long as the median rank"
