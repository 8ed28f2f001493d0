"""FLOPs of attention against counting every pair of query and key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.cost.attention import attention_flops, unmasked_pairs
from emulator.trace.schema import Attention

LENGTH = st.integers(1, 40)


def call(**changes):
    sizes = {"batch": 2, "heads": 6, "kv_heads": 2, "head_dim": 8, "query_length": 5, "key_length": 5}
    return Attention(**{**sizes, **changes})


@given(LENGTH, LENGTH, st.booleans())
def test_pairs_are_those_of_the_mask(queries, keys, causal):
    mask = np.ones((queries, keys), dtype=bool)
    if causal:
        mask = np.tril(mask)  # torch.ones(L, S).tril(diagonal=0), as scaled_dot_product_attention documents is_causal
    assert unmasked_pairs(queries, keys, causal=causal) == mask.sum()


@given(LENGTH, LENGTH, st.booleans())
def test_forward_is_two_matmuls_of_the_unmasked_part(queries, keys, causal):
    a = call(query_length=queries, key_length=keys, causal=causal)
    flops = 0
    for query in range(queries):
        seen = min(query + 1, keys) if causal else keys
        flops += 2 * seen * a.head_dim  # scores of one query: seen dot products of head_dim multiply-adds
        flops += 2 * seen * a.head_dim  # weighted sum of seen values
    assert attention_flops(a) == flops * a.batch * a.heads


def test_backward_is_two_and_a_half_times_forward():
    for causal in (False, True):
        forward, backward = (attention_flops(call(causal=causal, backward=b)) for b in (False, True))
        assert 2 * backward == 5 * forward


def test_long_causal_sequences_approach_half_of_full_attention():
    full, causal = (attention_flops(call(query_length=8192, key_length=8192, causal=c)) for c in (False, True))
    assert causal / full == (8192 + 1) / (2 * 8192)


def test_grouped_heads_do_not_change_the_arithmetic():
    assert attention_flops(call(kv_heads=1)) == attention_flops(call(kv_heads=6))
