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
