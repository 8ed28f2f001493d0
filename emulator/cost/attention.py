"""FLOPs of one attention call, in closed form.

torch's registry is of no use here: on CPU it counts 0 for the flash kernel, and elsewhere it ignores the causal mask.
"""

from __future__ import annotations

from emulator.trace.schema import Attention


def unmasked_pairs(query_length: int, key_length: int, *, causal: bool) -> int:
    """Number of (query, key) pairs that one head of one sequence computes.

    All of them, or under a causal mask those with key <= query, counted from the start of both sequences. That is
    torch's ``is_causal`` (``tril``, "top-left"); kernels that align the mask to the end ("bottom-right",
    flash-attention) agree with it where both lengths are equal, which is all that torch's own flash kernel accepts.
    Equal lengths s give s(s+1)/2: half of the square plus half of the diagonal.
    """
    if not causal:
        return query_length * key_length
    square = min(query_length, key_length)
    return square * (square + 1) // 2 + (query_length - square) * key_length


def attention_flops(a: Attention) -> int:
    """FLOPs of an attention call on this rank, a multiply-add counted as 2, the softmax not counted.

    Forward: two matmuls (scores, then the weighted values), so 4 · batch · heads · pairs · head_dim. Grouped key and
    value heads change the bytes, not the FLOPs. Backward: five matmuls (the scores are computed again), 2.5 times the
    forward; this is the count of the FlashAttention-2 paper (arXiv 2307.08691, section 4.1).
    """
    pairs = unmasked_pairs(a.query_length, a.key_length, causal=a.causal)
    per_matmul = 2 * a.batch * a.heads * pairs * a.head_dim
    return per_matmul * (5 if a.backward else 2)
