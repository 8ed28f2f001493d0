"""A time axis of round numbers that fits a width."""

from __future__ import annotations

from math import ceil, floor, log10

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_ROOM = 4  # cells between two labels, at least


def axis(start: float, end: float, cells: int) -> tuple[str, str]:
    """Labels and ruler of ``cells`` columns for times ``start`` to ``end`` (seconds).

    Ticks stand at the cell in which their time lies and are multiples of 1, 2 or 5 times a power of ten; all carry
    the same unit, written at each.
    """
    span = max(end - start, 1e-30)
    factor, unit = next(((f, u) for f, u in _UNITS if max(abs(start), abs(end)) >= f), _UNITS[-1])
    step = _round_step(span / factor / max(cells, 1))
    while True:
        ticks = [i * step for i in range(ceil(start / factor / step - 1e-9), floor(end / factor / step + 1e-9) + 1)]
        digits = max(0, -floor(log10(step) + 1e-9))
        labels = [f"{tick:.{digits}f} {unit}" for tick in ticks]
        longest = max(map(len, labels), default=0)
        if len(ticks) < 2 or step * factor / span * cells >= longest + _ROOM:
            break
        step = _round_step(step * 1.5)
    names, ruler = [" "] * cells, ["-"] * cells
    for tick, label in zip(ticks, labels, strict=True):
        cell = int((tick * factor - start) / span * cells + 1e-6)
        if cell >= cells:
            break  # a tick at the very end would stand outside
        ruler[cell] = "|"
        if cell + len(label) <= cells:
            names[cell : cell + len(label)] = label
    return "".join(names).rstrip(), "".join(ruler)


def _round_step(at_least: float) -> float:
    power = 10.0 ** floor(log10(at_least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= at_least * (1 - 1e-9))
