"""Orders of starts and ends, told from times; who conflicts with whom; no tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.trace.schema import Op
from emulator.verify import memory
from emulator.verify.accesses import conflicting_pairs, conflicts, meetings
from emulator.verify.order import Event, Unit, by_time, positions, without_rounding
from emulator.verify.report import check, report


def op(id, reads=(), writes=()):
    return Op(id=id, kind="compute", name=f"op{id}", reads=[(s, 8) for s in reads], writes=[(s, 8) for s in writes])


def names(events):
    return [f"{'end' if event.ends else 'start'} {event.unit}" for event in events]


def test_what_ends_comes_before_what_starts_at_the_same_time():
    assert names(by_time([Unit((0,), 0, 1), Unit((1,), 1, 2)])) == ["start 0", "end 0", "start 1", "end 1"]


def test_what_takes_no_time_comes_in_between_in_issue_order():
    units = [Unit((0,), 0, 1), Unit((1,), 1, 1), Unit((2,), 1, 1), Unit((3,), 1, 2)]
    assert names(by_time(units))[1:-2] == ["end 0", "start 1", "end 1", "start 2", "end 2"]


def test_overlap_stays_overlap():
    assert names(by_time([Unit((0,), 0, 2), Unit((1,), 1, 3)])) == ["start 0", "start 1", "end 0", "end 1"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=8))
def test_an_order_has_each_start_before_its_end(times):
    units = [Unit((i,), start, start + length) for i, (start, length) in enumerate(times)]
    starts, ends = positions(by_time(units), len(units))
    assert sorted([*starts.tolist(), *ends.tolist()]) == list(range(2 * len(units)))
    assert np.all(starts < ends)
    for a, first in enumerate(units):
        for b, then in enumerate(units):
            if first.end < then.start or (first.end == then.start and a < b):
                assert ends[a] < starts[b]


def test_rounding_on_a_stream_is_no_overlap():
    start, end = np.array([0.0, 1.0 - 1e-16, 0.5]), np.array([1.0, 2.0, 3.0])
    fixed, _ = without_rounding(start, end, [np.array([0, 1])])
    assert fixed.tolist() == [0.0, 1.0, 0.5]  # what really overlaps, and other streams, stay


def test_pairs_that_have_to_keep_their_order():
    ops = {o.id: o for o in (op(0, writes=[7]), op(1, reads=[7]), op(2, reads=[7]), op(3, writes=[7]))}
    assert list(conflicting_pairs(ops)) == [(0, 1, 7), (0, 2, 7), (1, 3, 7), (2, 3, 7)]


def test_in_place_ops_follow_each_other():
    ops = {o.id: o for o in (op(0, writes=[7]), op(1, reads=[7], writes=[7]), op(2, reads=[7], writes=[7]))}
    assert list(conflicting_pairs(ops)) == [(0, 1, 7), (1, 2, 7)]


def test_a_conflict_names_both_ops_and_when():
    ops = {o.id: o for o in (op(0, writes=[7]), op(1, reads=[7]))}
    for first, second, how in (((0, 2), (1, 3), "they overlap, 1 s to 2 s"), ((2, 3), (0, 1), "it runs 0 s to 1 s")):
        units = [Unit((0,), *first), Unit((1,), *second)]
        pairs, found = conflicts(ops, units, by_time(units), rank=5)
        assert pairs == 1
        assert found[0].startswith("rank 5: op 1 op1 reads storage 7 that op 0 op0 writes: ")
        assert how in found[0]


def test_an_op_that_never_runs_is_a_conflict_too():
    ops = {o.id: o for o in (op(0, writes=[7]), op(1, reads=[7]))}
    units = [Unit((0,), 0, 1), Unit((1,), 1, 2)]
    _, found = conflicts(ops, units, [Event(1, False), Event(1, True)], rank=0)
    assert len(found) == 1


def test_a_meeting_waits_for_the_last():
    came, left = [np.array([0.0, 5.0])], [np.array([6.0, 6.0])]
    assert meetings(came, left, ["all_reduce 0"], [[3, 4]]) == []
    (line,) = meetings(came, [np.array([4.0, 6.0])], ["all_reduce 0"], [[3, 4]])
    assert line == "all_reduce 0 ends on rank 3 at 4 s, before rank 4 comes at 5 s"


def test_more_processes_than_memory_are_refused_with_the_figure(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1e9)
    memory.check_room(4)
    with pytest.raises(InputError, match=r"64 processes need about 8.3 GB, 1.0 GB are free"):
        memory.check_room(64, source="verify")


def test_a_report_is_proved_by_all_its_checks():
    held, failed = check("a", "x", [], 3), check("b", "x", [f"line {i}" for i in range(30)], 3)
    assert report("it", [held], {}, 1.0).proved
    assert not report("it", [held, failed], {}, 1.0).proved
    assert not report("it", [], {}, 1.0).proved  # nothing was looked at
    assert (len(failed.findings), failed.findings_left_out) == (20, 10)
    assert b'"schema": "emu-verify/1"' in report("it", [held], {}, 1.0).json()
