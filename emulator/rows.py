"""Compressed rows: a table of rows of any lengths as one column and the places where rows begin.

Row i of a column is ``column[ptr[i]:ptr[i + 1]]``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def offsets(lengths: NDArray[np.integer] | Sequence[int]) -> NDArray[np.int64]:
    """Where rows begin and the last one ends, from their lengths: ``[0, n0, n0 + n1, ...]``."""
    ptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ptr[1:])
    return ptr


def owners(ptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of every entry."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def by_value(column: NDArray[np.int64], values: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each of the numbers 0 to ``values - 1`` stands in a column: a row of places, ascending, for each number."""
    return offsets(np.bincount(column, minlength=values)), np.argsort(column, kind="stable")
