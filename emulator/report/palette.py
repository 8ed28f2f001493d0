"""Letters and colours of report and timeline.

Every kind has a letter, so that nothing is lost without colour; letters are drawn on their colour where there is one.
Colours are those of Okabe and Ito ("Color Universal Design", 2008), told apart by colour-blind readers too; families
(compute, communication, waiting) differ in lightness as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

COMPUTE: dict[str, tuple[str, str, str]] = {
    "forward": ("F", "forward", "white on #0072b2"),
    "backward": ("B", "backward", "black on #56b4e9"),
    "backward_input": ("D", "backward, input gradient", "black on #56b4e9"),
    "backward_weight": ("G", "backward, weight gradient", "white on #005a8c"),
    "recompute": ("R", "recompute", "white on #d55e00"),
    "optimizer": ("O", "optimizer", "black on #009e73"),
    "": ("C", "compute without a phase", "white on #666666"),
}
"""Compute by phase: letter, what the legend says, style."""

BARS: dict[str, tuple[str, str, str]] = {
    **COMPUTE,
    "slowed": ("S", "compute slowed by communication", "black on #cc79a7"),
    "exposed_transfer": ("T", "exposed transfer", "black on #e69f00"),
    "exposed_wait": ("W", "exposed wait", "black on #f0e442"),
    "host": ("H", "host", "white on #d55e00"),
    "idle": (".", "idle", "default"),
}
"""Parts of a stacked bar: compute by phase, then the other lines of the partition; all kinds of idle are one."""

COMMUNICATION: dict[str, tuple[str, str, str]] = {
    "all_gather": ("g", "all-gather", "black on #e69f00"),
    "reduce_scatter": ("s", "reduce-scatter", "black on #cc79a7"),
    "all_reduce": ("r", "all-reduce", "black on #cc79a7"),
    "all_to_all": ("a", "all-to-all", "black on #e69f00"),
    "broadcast": ("b", "broadcast", "black on #e69f00"),
    "peer": ("p", "send/recv", "black on #e69f00"),
    "": ("x", "other collective", "black on #e69f00"),
}
"""Transfers by kind of communication."""

WAIT = ("w", "wait for participants", "black on #f0e442")
HOST_SYNC = ("h", "host synchronisation", "white on #d55e00")
IDLE = (".", "idle", "default")


def legend(entries: Sequence[tuple[str, str, str]], width: int) -> Text:
    """``(letter, meaning, style)`` entries in lines of at most ``width``; an entry is broken only if alone too long."""
    text, column = Text(), 0
    for letter, meaning, style in entries:
        length = len(letter) + 1 + len(meaning)
        if column:
            text.append("  " if column + 2 + length <= width else "\n")
            column = column + 2 if column + 2 + length <= width else 0
        text.append(letter, style)
        text.append(f" {meaning}"[: max(0, width - len(letter))])
        column += length
    return text
