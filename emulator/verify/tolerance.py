"""How far two correct computations of the same step may be apart.

Sums come in another order when a job is cut up. A sum of K terms rounds by about ``eps sqrt(K)`` of its size (errors
of random sign add up like a walk; the worst case, ``eps K``, does not occur in practice), and a model passes through D
matrices, one after the other. bfloat16 and float16 matmuls add up in float32, so there a whole sum is one rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Machine epsilon of the dtypes a model may have.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
# Gradients of attention are small differences of large terms: the largest errors measured are 360 eps in float32 and
# 150 eps in float64. Half precision rounds the same values in the same places in both runs (measured: 3 eps).
_SAFETY = {"float64": 32.0, "float32": 32.0, "bfloat16": 8.0, "float16": 8.0}
# AdamW divides a gradient by its own size: an element whose gradient is small against the others of its tensor moves by
# the learning rate times the *relative* error of that gradient. Elements this far below the largest have this room.
_SMALLEST_GRADIENT = 1e-3


@dataclass(frozen=True)
class Tolerance:
    """Bounds: ``relative`` to the largest magnitude of a loss or gradient tensor, ``moved`` for a parameter, absolute,
    per optimizer step. ``text`` says where they come from."""

    relative: float
    moved: float
    text: str


def tolerance(dtype: str, *, longest_sum: int, matrices: int, learning_rate: float) -> Tolerance:
    """The tolerance for a model in ``dtype`` whose longest sum has ``longest_sum`` terms."""
    terms = longest_sum if dtype in ("float64", "float32") else 1
    relative = _SAFETY[dtype] * EPSILON[dtype] * math.sqrt(terms * max(1, matrices))
    moved = learning_rate * min(2.0, relative / _SMALLEST_GRADIENT)
    bound = f"{_SAFETY[dtype]:g} eps({dtype}) sqrt({terms} terms x {matrices} matrices)"
    text = f"losses, gradients: {bound} = {relative:.1e} of the largest; parameters: {moved:.1e} a step"
    return Tolerance(relative, moved, text)
