"""Recognising a tensor by its bytes, or where kernels round otherwise by its norm and a projection."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from emulator.capture.fingerprint import CLOSE, NOT_FINITE  # noqa: E402
from emulator.capture.numerics import fingerprint, numerics  # noqa: E402

pytestmark = pytest.mark.torch
FLOATS = [getattr(torch, name) for name in CLOSE]


def values(size, seed, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(st.integers(1, 20000), st.integers(0, 99), st.sampled_from(FLOATS))
@settings(max_examples=40, deadline=None)
def test_rounding_of_every_element_is_recognised_elsewhere_and_not_here(size, seed, dtype):
    live = values(size, seed, dtype)
    eps = torch.finfo(dtype).eps
    other = (live.double() * (1 + eps * torch.sign(values(size, seed + 1).double()))).to(dtype)
    found = fingerprint(live).recognises(fingerprint(other), same_numerics=False)
    assert found
    assert fingerprint(live).recognises(fingerprint(other), same_numerics=True) == torch.equal(live, other)


@given(st.integers(100, 20000), st.integers(0, 99), st.sampled_from(["swapped", "negated", "shifted", "scaled"]))
@settings(max_examples=40, deadline=None)
def test_anything_else_is_not(size, seed, how):
    live = values(size, seed)
    other = {
        "swapped": live.flip(0),
        "negated": torch.cat([-live[:10], live[10:]]),
        "shifted": live + 0.01,
        "scaled": live * 1.001,
    }[how]
    assert not fingerprint(live).recognises(fingerprint(other), same_numerics=False)


def test_whole_numbers_have_to_be_equal():
    one, two = torch.arange(100), torch.arange(100) + (torch.arange(100) == 50)
    assert not fingerprint(one).recognises(fingerprint(two), same_numerics=False)


def test_what_is_not_finite_is_recognised_by_its_bytes_only():
    a, b = torch.tensor([1.0, float("nan")]), torch.tensor([2.0, float("nan")])
    assert fingerprint(a).norm == NOT_FINITE
    assert fingerprint(a).recognises(fingerprint(a.clone()), same_numerics=False)
    assert not fingerprint(a).recognises(fingerprint(b), same_numerics=False)


def test_nothing_and_zeros_are_themselves():
    for tensor in (torch.empty(0), torch.zeros(5)):
        assert fingerprint(tensor).recognises(fingerprint(tensor.clone()), same_numerics=True)
    assert not fingerprint(torch.zeros(5)).recognises(fingerprint(torch.ones(5)), same_numerics=False)


def test_a_machine_is_itself():
    numerics.cache_clear()
    assert numerics() == numerics()
    first = numerics()
    numerics.cache_clear()
    assert numerics() == first
