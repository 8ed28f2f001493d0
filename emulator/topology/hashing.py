"""Stable hashes for routing: the same pair takes the same path in every run, on every machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.topology.graph import Ints

Words = NDArray[np.uint64]
_GOLDEN, _FIRST, _SECOND = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mix(x: Words) -> Words:
    """Finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection on 64 bits that spreads every bit."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def hashed(seed: int, *keys: Ints | int | np.int64) -> Words:
    """64 mixed bits of the keys (arrays broadcast): splitmix64, once per key."""
    mixed = np.atleast_1d(np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
    with np.errstate(over="ignore"):
        for key in keys:
            mixed = mix(mixed + np.asarray(key, dtype=np.int64).astype(np.uint64))
    return mixed


def pick(words: Words, choices: int) -> Ints:
    """A number below ``choices`` for every word."""
    return (words % np.uint64(choices)).astype(np.int64)
