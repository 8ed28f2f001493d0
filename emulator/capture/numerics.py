"""Fingerprints of tensors, and of the machine: which bits its kernels give."""

from __future__ import annotations

import hashlib
import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention, silu

from emulator.capture.fingerprint import CLOSE, NOT_FINITE, Fingerprint

_SIGNS = 8191  # prime, so that no regular layout is in step with it


def digest(tensor: torch.Tensor) -> str:
    """Digest of a tensor's bytes, in the order of its elements."""
    flat = tensor.detach().contiguous().flatten()
    return _hash(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


def fingerprint(tensor: torch.Tensor) -> Fingerprint:
    """The fingerprint of a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    norm, projections = NOT_FINITE, [0.0]
    if dtype in CLOSE:
        # in numpy: a recording that runs sees what torch does
        values = tensor.detach().contiguous().flatten().double().numpy()
        rows = np.pad(values, (0, -len(values) % _SIGNS)).reshape(-1, _SIGNS)
        found = [float(np.linalg.norm(values)), *(_signs() @ rows.sum(0)).tolist()]
        if all(math.isfinite(value) for value in found):
            norm, projections = found[0], found[1:]
    return Fingerprint(digest(tensor), norm, projections, dtype)


@cache
def numerics() -> str:
    """What a few kernels give on this machine, with this torch and number of threads, as a digest."""
    found = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for rows, width in ((64, 48), (33, 257), (128, 512)):
            a = (torch.arange(rows * width, dtype=torch.float64) * 37 % 1009 / 1009 - 0.5).to(dtype).view(rows, width)
            product = a @ a.t()
            found += [product, product.softmax(-1), silu(a), a.exp().sum(), a.pow(2).mean(-1).rsqrt()]
            heads = a[:, :48].reshape(1, 1, rows, 48)
            found.append(scaled_dot_product_attention(heads, heads, heads, is_causal=True))
    return _hash("".join(digest(tensor) for tensor in found).encode())


def _hash(whole: bytes) -> str:
    return hashlib.blake2b(whole, digest_size=8).hexdigest()


@cache
def _signs() -> NDArray[np.float64]:
    return np.random.default_rng(0).choice(np.array([-1.0, 1.0]), (3, _SIGNS))
