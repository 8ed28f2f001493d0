"""Figures as report and timeline write them, each with its unit."""

from __future__ import annotations

from emulator.units import format_bytes, format_flops, format_rate, format_seconds

rate = format_rate
size = format_bytes
_LEAST_SECONDS = 5e-12


def seconds(value: float) -> str:
    """A time, such as ``69 ms``; what would read 0.00 ns is ``0 s``."""
    return format_seconds(value) if abs(value) >= _LEAST_SECONDS else "0 s"


def flops(value: float) -> str:
    """A number of floating-point operations (not a rate), such as ``3.2 PFLOP``."""
    return format_flops(value).removesuffix("/s")


def count(value: float) -> str:
    """A number of things: exact below 10,000, else such as ``8.03 B`` (B: 10^9)."""
    for factor, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(factor * 0.9995, 1e4):
            return f"{value / factor:.4g} {name}"
    return f"{value:.0f}"


def percent(part: float, whole: float = 1.0) -> str:
    """A share, such as ``91.3 %``: the caller says of what. ``-`` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def change(value: float, base: float, whole: float | None = None) -> str:
    """How far a value is from a base, signed, such as ``-18.0 %``: of the base, or of ``whole``. ``-`` of nothing."""
    whole = base if whole is None else whole
    return f"{100 * (value - base) / whole + 0.0:+.1f} %".replace("-0.0 %", "+0.0 %") if whole else "-"


def several(number: int, thing: str) -> str:
    """A number with its noun, such as ``1 class`` or ``16,384 ranks``."""
    plural = thing + ("es" if thing.endswith(("s", "ch", "sh")) else "s")
    return f"{number:,} {thing if number == 1 else plural}"
