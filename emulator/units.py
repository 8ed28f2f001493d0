"""Quantities with units: read from files and the command line, written for people.

Inside the project every quantity is SI: seconds, bytes, bytes/s per direction, FLOP/s dense; a bare number is taken as
SI. Prefixes are decimal (``GB`` is 10**9 bytes, ``GiB`` is 2**30). Text that vendors use in two meanings is refused
with a hint instead of guessed: ``400G`` and ``400 gb/s`` (bits or bytes?), ``900 GB/s bidirectional`` (both directions
added), a size of ``1G`` (10**9 or 2**30?).
"""

from __future__ import annotations

import math
import re

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d].*?)?\s*")

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIX = _DECIMAL | _BINARY

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_BYTES = {prefix + "B": scale for prefix, scale in _PREFIX.items()}
_RATE = {
    prefix + unit + per: scale / bits
    for prefix, scale in _PREFIX.items()
    for unit, bits in (("B", 1.0), ("bit", 8.0), ("b", 8.0))
    for per in ("/s", "ps")
}
_FLOPS = {
    prefix + name: scale for prefix, scale in _DECIMAL.items() for name in ("FLOP/s", "FLOPS", "FLOPs/s", "OP/s", "OPS")
}
_BOTH_WAYS = re.compile(r"bi-?dir|both|total|aggregate|duplex", re.IGNORECASE)


def parse_seconds(value: str | float) -> float:
    """Seconds from ``1.5 us`` or a bare number of seconds. Raises ValueError."""
    return _parse(value, _SECONDS, "a time", "1.5 us, 200 ns, 0.3 ms")


def parse_bytes(value: str | float) -> float:
    """Bytes from ``80 GB``, ``96 GiB`` or a bare number of bytes. Raises ValueError."""
    return _parse(value, _BYTES, "a size", "1 GB (10^9 bytes), 1 GiB (2^30 bytes)")


def parse_rate(value: str | float) -> float:
    """Bytes/s per direction from ``400 Gbit/s``, ``450 GB/s`` or a bare number of bytes/s. Raises ValueError."""
    if isinstance(value, str) and _BOTH_WAYS.search(value):
        raise ValueError(
            f"{value!r} counts more than one direction; give bytes/s per direction (half of it for a full-duplex link)"
        )
    return _parse(value, _RATE, "a bandwidth", "450 GB/s, 400 Gbit/s")


def parse_flops(value: str | float) -> float:
    """FLOP/s (dense) from ``989 TFLOP/s`` or a bare number of FLOP/s. Raises ValueError."""
    return _parse(value, _FLOPS, "a compute rate", "989 TFLOP/s")


def _parse(value: str | float, units: dict[str, float], what: str, examples: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected {what} such as {examples}, got {type(value).__name__}")
    if not isinstance(value, str):
        return _finite(float(value), value)
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not {what}; write it as {examples}, or as a bare SI number")
    number = float(match.group(1).replace("_", ""))
    unit = re.sub(r"\s+", "", match.group(2) or "")
    if unit and unit not in units:
        raise ValueError(f"{value!r} has no unit that means {what} beyond doubt; write it as {examples}")
    return _finite(number * units[unit] if unit else number, value)


def _finite(number: float, value: str | float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def format_seconds(seconds: float) -> str:
    """A time for people: ``1.234 s``, ``56.7 ms``, ``8.9 us``, ``120 ns``."""
    size = abs(seconds)
    if size >= 60:
        return f"{seconds:,.1f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if size >= scale * 0.9995 or unit == "ns":
            return f"{_four_digits(seconds / scale)} {unit}"
    raise AssertionError("unreachable")


def format_bytes(count: float) -> str:
    """A size for people, decimal: ``1.07 GB``."""
    return _decimal(count, "B")


def format_rate(bytes_per_second: float) -> str:
    """A bandwidth for people, decimal, per direction: ``450 GB/s``."""
    return _decimal(bytes_per_second, "B/s")


def format_flops(flops_per_second: float) -> str:
    """A compute rate for people: ``989.4 TFLOP/s``."""
    return _decimal(flops_per_second, "FLOP/s")


def _decimal(value: float, unit: str) -> str:
    for prefix in ("E", "P", "T", "G", "M", "k"):
        if abs(value) >= _DECIMAL[prefix] * 0.9995:
            return f"{_four_digits(value / _DECIMAL[prefix])} {prefix}{unit}"
    return f"{_four_digits(value)} {unit}"


def _four_digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
