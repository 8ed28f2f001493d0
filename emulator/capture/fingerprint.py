"""What is kept of a tensor to recognise it by: its bytes on this kind of machine, its size and direction on any other.

The same op gives other last bits on another processor or with another library, whose kernels add in another order.
There a tensor is recognised by its norm and by its sums under three fixed sequences of signs: projections on random
directions, which any difference but one (nearly) orthogonal to all of them shows.
"""

from __future__ import annotations

import math

import msgspec

# Of the norm. Between vector widths (AVX-512, AVX2, none) steps of a tiny model are 2.7e-15, 1.2e-6 and (bfloat16)
# 2.4e-2 apart; larger models add up longer sums. float16 was not measured: its eps is an eighth of bfloat16's.
CLOSE = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-3}
NOT_FINITE = -1.0


class Fingerprint(msgspec.Struct, array_like=True, frozen=True):
    """``digest`` of the bytes, ``norm`` (Euclidean) and ``projections`` of the values; ``dtype`` they were read as.

    Where a value is not finite, or they are no floating-point numbers, ``norm`` is NOT_FINITE.
    """

    digest: str
    norm: float
    projections: list[float]
    dtype: str

    def distance(self, other: Fingerprint) -> float:
        """How far the other tensor is from this one, as a part of their norm: 0 for equal bytes, infinite where there
        is no telling.
        """
        if self.digest == other.digest:
            return 0.0
        norm = max(self.norm, other.norm)
        if self.dtype not in CLOSE or self.dtype != other.dtype or min(self.norm, other.norm) < 0 or not norm:
            return math.inf
        apart = [abs(a - b) for a, b in zip(self.projections, other.projections, strict=False)]
        return max(abs(self.norm - other.norm), *apart) / norm

    def recognises(self, other: Fingerprint, *, same_numerics: bool) -> bool:
        """Is the other the same tensor, computed where kernels give the same bits or where they do not?"""
        if same_numerics:
            return self.digest == other.digest
        return self.distance(other) <= CLOSE.get(self.dtype, 0.0)
