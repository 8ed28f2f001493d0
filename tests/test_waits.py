"""How long rings wait for their latencies: a few straight lines, against all rows of edges and against the messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network.waits import ring_lines


def waited(latency, slack, window, amount):
    """Seconds by the lines, of one group with the rings given."""
    seconds, saved = ring_lines(np.array([latency], dtype=float), np.array([slack], dtype=float), window)
    return (seconds[0] - saved[0] * amount).max()


def longest_row(latency, slack, window, amount):
    """The same by trying every row of edges."""
    best = 0.0
    for a, s in zip(latency, slack, strict=True):
        for first in range(len(a)):
            row = (first + np.arange(window)) % len(a)
            extra = np.array(s) - min(s)
            best = max(best, np.cumsum(np.array(a)[row] - amount * extra[row]).max() - amount * window * min(s))
    return best


def by_messages(latency, slack, window, amount):
    """The time of every message in turn, less that of the slowest edge: what the steps do."""
    ends = []
    for a, s in zip(latency, slack, strict=True):
        own = -amount * np.array(s)
        left = own.copy()
        for _ in range(window - 1):
            left = own + np.maximum(left, np.roll(left + a, 1))
        ends.append((left + a).max())
    return max(0.0, *ends)


@st.composite
def rings(draw):
    edges = draw(st.integers(2, 7))
    several = st.lists(st.lists(st.floats(0, 1), min_size=edges, max_size=edges), min_size=2, max_size=2)
    slack = draw(several)
    slack[0][draw(st.integers(0, edges - 1))] = 0.0
    slack = [[s if s > 1e-9 else 0.0 for s in ring] for ring in slack]
    return draw(several), slack, draw(st.sampled_from([1, 2])) * (edges - 1)


@given(rings(), st.floats(0, 20))
@settings(max_examples=300, deadline=None)
def test_lines_are_the_longest_row_of_edges(case, amount):
    whole = longest_row(*case, 0.0)
    assert waited(*case, amount) == pytest.approx(longest_row(*case, amount), abs=2e-4 * whole)


@given(rings(), st.floats(0, 20))
@settings(max_examples=300, deadline=None)
def test_no_message_waits_longer(case, amount):
    assert waited(*case, amount) >= by_messages(*case, amount) - 2e-4 * longest_row(*case, 0.0)


def test_few_bytes_pay_every_latency_and_many_that_of_the_slow_edge():
    latency, slack = [[1.0, 2.0, 3.0, 4.0]], [[0.0, 0.5, 0.5, 0.5]]
    assert [waited(latency, slack, 3, amount) for amount in (0.0, 100.0)] == pytest.approx([9.0, 1.0])
    assert waited(latency, slack, 3, 3.0) == by_messages(latency, slack, 3, 3.0) == pytest.approx(4 + 3 + 1 - 3.0)


def test_two_slow_edges_in_a_row_pay_both():
    assert waited([[1.0, 2.0, 3.0, 4.0]], [[0.5, 0.0, 0.0, 0.5]], 3, 100.0) == pytest.approx(5.0)


def test_groups_that_are_alike_get_the_same_lines():
    latency, slack = np.array([[[1.0, 2.0]], [[2.0, 1.0]], [[1.0, 2.0]]]), np.zeros((3, 1, 2))
    seconds, saved = ring_lines(latency, slack, 2)
    assert seconds.tolist() == [[3.0]] * 3
    assert saved.tolist() == [[0.0]] * 3
