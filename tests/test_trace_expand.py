"""Unrolling blocks: rows, dependencies across instances, tags."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.trace.expand import instance_value, rows
from emulator.trace.schema import BlockUse
from tests.jobs import compute, job, wait


def deps(unrolled):
    return [unrolled.deps[a:b].tolist() for a, b in zip(unrolled.deps_ptr, unrolled.deps_ptr[1:], strict=False)]


def test_blocks_unroll_in_order():
    trace = job(
        {"dp": 1}, [compute(0, 1.0), BlockUse("b", 3), compute(1, 1.0)], blocks={"b": [compute(5, 1.0), wait(6, 5)]}
    )
    unrolled = rows(trace, 0)
    assert unrolled.template.tolist() == [2, 0, 1, 0, 1, 0, 1, 3]
    assert unrolled.instance.tolist() == [-1, 0, 0, 1, 1, 2, 2, -1]
    assert deps(unrolled) == [[], [], [1], [], [3], [], [5], []]


def test_references_to_earlier_instances_and_to_the_program():
    body = [compute(0, 1.0), wait(1, [1, 0]), wait(2, [0, 7, ""])]
    trace = job({"dp": 1}, [compute(7, 1.0), BlockUse("b", 2), wait(8, [1, 0, "b"])], blocks={"b": body})
    unrolled = rows(trace, 0)
    assert deps(unrolled) == [[], [], [], [0], [], [1], [0], [1]]
    assert unrolled.void_deps == 1  # the first instance has none before it


def test_a_block_sees_the_latest_instance_of_another():
    trace = job(
        {"dp": 1},
        [BlockUse("f", 2), BlockUse("b", 2)],
        blocks={"f": [compute(0, 1.0)], "b": [wait(0, [0, 0, "f"]), wait(1, [1, 0, "f"])]},
    )
    assert deps(rows(trace, 0)) == [[], [], [1], [0], [1], [0]]


def test_tags_per_instance():
    trace = job({"dp": 1}, [BlockUse("b", 3, {"layer": "31-1", "microbatch": 4})], blocks={"b": [compute(0, 1.0)]})
    unrolled = rows(trace, 0)
    assert unrolled.tags["layer"].tolist() == [31, 30, 29]
    assert unrolled.tags["microbatch"].tolist() == [4, 4, 4]
    assert unrolled.tags["stage"].tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("text", "value"), [("3", (3, 0)), (5, (5, 0)), ("0+1", (0, 1)), ("31-1", (31, -1)), ("31+-1", (31, -1))]
)
def test_instance_values(text, value):
    assert instance_value(text) == value


@pytest.mark.parametrize("ref", [99, [0, 99, ""], [0, 99, "b"], [0, 0, "nope"], [-1, 0], [1], [1, 0]])
def test_references_that_lead_nowhere(ref):
    trace = job({"dp": 1}, [BlockUse("b", 1), wait(8, ref)], blocks={"b": [compute(0, 1.0)]})
    with pytest.raises(InputError):
        rows(trace, 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_unrolling_equals_writing_it_out(uses):
    """The same program with every instance written out has the same rows and dependencies."""
    body = [compute(0, 1.0), wait(1, 0, [2, 0]), compute(2, 1.0)]
    items, flat, starts = [], [], []
    for repeat, extra in uses:
        for _ in range(extra):
            op_id = 1000 + len(flat)
            items.append(compute(op_id, 1.0))
            flat.append(compute(len(flat), 1.0))
        items.append(BlockUse("b", repeat))
        for _ in range(repeat):
            start = len(flat)
            starts.append(start)
            earlier = [starts[-3]] if len(starts) > 2 else []
            flat += [compute(start, 1.0), wait(start + 1, start, *earlier), compute(start + 2, 1.0)]
    blocked = rows(job({"dp": 1}, items, blocks={"b": body}), 0)
    written_out = rows(job({"dp": 1}, flat), 0)
    assert deps(blocked) == deps(written_out)
    assert len(blocked) == len(written_out)
    assert np.array_equal(np.diff(blocked.deps_ptr), np.diff(written_out.deps_ptr))
