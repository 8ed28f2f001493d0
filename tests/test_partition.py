"""The partition of a rank's step: hand cases with their answers, and the definition read instant by instant."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_results import gpipe

from emulator.report.partition import fill, partition
from emulator.report.pieces import LINES, pipeline_phase
from emulator.result.build import Span, op_table, result, timelines
from emulator.result.schema import Partition
from emulator.result.tables import COMMUNICATION


def split(spans: Sequence[Span], step: float) -> Partition:
    return partition(op_table(spans), timelines(spans), step)


def parts(found: Partition) -> dict[str, float]:
    """The lines of a partition that are not zero."""
    values = {name: getattr(found, f"{name}_seconds") for name in LINES}
    return {name: value for name, value in values.items() if value}


def compute(start: float, end: float, **more: object) -> Span:
    return Span("mm", start, end, **more)  # type: ignore[arg-type]


def communicate(start: float, transfer: float, end: float, **more: object) -> Span:
    fields = {"kind": "collective", "stream": "comm", "transfer_start": transfer, **more}
    return Span("c10d::op", start, end, **fields)  # type: ignore[arg-type]


def test_all_reduce_whose_peer_comes_late() -> None:
    """Posted at 0, peer arrives at 60, transfer 60-80; compute 0-70 and 80-90, the second needs the result."""
    found = split([communicate(0, 60, 80), compute(0, 70), compute(80, 90, deps=[0])], 90)
    assert parts(found) == {"compute": 80, "exposed_transfer": 10}
    assert found.hidden_wait_seconds == 60
    assert found.hidden_transfer_seconds == 10
    assert found.overlap == 0.5
    assert found.communication_seconds == 80
    assert found.sum_minus_step_seconds == 0


def test_all_gather_beside_a_receive_without_compute() -> None:
    found = split([communicate(0, 0, 50), communicate(0, 80, 90, kind="recv", stream="pp")], 90)
    assert parts(found) == {"exposed_transfer": 60, "exposed_wait": 30}
    assert found.overlap == 0


def test_receive_posted_before_compute() -> None:
    found = split([communicate(0, 80, 100, kind="recv"), compute(0, 60)], 100)
    assert parts(found) == {"compute": 60, "exposed_wait": 20, "exposed_transfer": 20}
    assert found.hidden_wait_seconds == 60


def test_one_stream_with_a_synchronous_all_reduce() -> None:
    """90 us of compute and 10 us of exposed transfer are 10 % exposed."""
    found = split([compute(0, 60), communicate(60, 60, 70, stream="compute"), compute(70, 100)], 100)
    assert parts(found) == {"compute": 90, "exposed_transfer": 10}


def test_two_synchronous_collectives_in_a_row_hold_what_follows_both() -> None:
    found = split(
        [communicate(0, 10, 11, stream="compute"), communicate(11, 15, 16, stream="compute"), compute(16, 20)], 20
    )
    assert parts(found) == {"exposed_wait": 14, "exposed_transfer": 2, "compute": 4}


def test_host_late_with_the_next_op() -> None:
    found = split([compute(0, 10), compute(15, 20, host=True)], 20)
    assert parts(found) == {"compute": 15, "host": 5}


def test_a_wait_that_holds_nobody_is_not_exposed() -> None:
    """A prefetched all-gather waits for its peers until 50, but the next op is only late from the host until 30."""
    spans = [communicate(0, 50, 60), compute(30, 40, host=True), compute(60, 70, deps=[0])]
    assert parts(split(spans, 70)) == {"host": 30, "compute": 20, "exposed_wait": 10, "exposed_transfer": 10}


def test_a_collective_queued_behind_another_holds_the_next_op_through_it() -> None:
    """Compute at 40 needs the second of two collectives on one stream; the first waits for a peer from 10 to 20."""
    spans = [compute(0, 5), communicate(0, 20, 25), communicate(25, 30, 40), compute(40, 41, deps=[2])]
    assert parts(split(spans, 41)) == {"compute": 6, "exposed_wait": 20, "exposed_transfer": 15}


def test_a_queued_collective_alone_is_no_reason_to_wait() -> None:
    """The compute at 30 is late from the host and needs no collective: that two are queued does not matter until 35."""
    spans = [communicate(0, 20, 25), communicate(25, 40, 50), compute(30, 35, host=True)]
    assert parts(split(spans, 50)) == {
        "host": 25, "exposed_transfer": 15, "compute": 5, "exposed_wait": 5,
    }  # fmt: skip


def test_host_synchronisation_passes_a_wait_on_to_what_is_issued_later() -> None:
    spans = [
        communicate(0, 20, 25),
        Span("cudaStreamSynchronize", 0, 25, kind="host_sync", stream="host", deps=[0]),
        compute(26, 30, host=True),
    ]
    assert parts(split(spans, 30)) == {"exposed_wait": 20, "exposed_transfer": 5, "host": 1, "compute": 4}


def test_a_wait_op_is_not_compute() -> None:
    spans = [communicate(0, 0, 20), Span("wait_tensor", 0, 20, kind="wait", deps=[0]), compute(20, 25, deps=[1])]
    assert parts(split(spans, 25)) == {"exposed_transfer": 20, "compute": 5}


def test_parts_of_a_batch_are_waited_for_together() -> None:
    spans = [
        communicate(0, 5, 6, kind="send", stream="pp"),
        communicate(0, 20, 22, kind="recv", stream="pp"),
        Span("unbatch", 22, 22, kind="wait", stream="pp"),
        compute(22, 30, deps=[2]),
    ]
    assert parts(split(spans, 30)) == {"exposed_wait": 19, "exposed_transfer": 3, "compute": 8}


def test_order_on_a_stream_survives_rounding() -> None:
    """The wait seems to end an instant after the compute that follows it on the stream has started."""
    third = 1 / 3
    spans = [
        communicate(0, 20, 20 + third),
        Span("wait_tensor", 20 + third, (20 + third) * (1 + 1e-15), kind="wait", deps=[0]),
        compute(20 + third, 30),
        compute(30, 31),
    ]
    assert split(spans, 31).exposed_wait_seconds == 20


def test_idle_before_after_and_for_a_dependency() -> None:
    found = split([compute(10, 20), compute(25, 30)], 50)
    assert parts(found) == {"idle_before": 10, "compute": 15, "idle_dependency": 5, "idle_after": 20}


def test_a_rank_that_does_nothing() -> None:
    found = split([], 7)
    assert parts(found) == {"idle_before": 7}
    assert found.overlap is None


def test_a_late_rank_costs_the_others_waiting_and_nobody_transfer() -> None:
    """Four ranks all-reduce in no time at 30; three are there at 10."""
    early = [compute(0, 10), communicate(10, 30, 30, stream="compute"), compute(30, 40)]
    late = [compute(0, 30), communicate(30, 30, 30, stream="compute"), compute(30, 40)]
    first, second = fill(result([early, late], [3, 1])).ranks
    assert first.partition and parts(first.partition) == {"compute": 20, "exposed_wait": 20}
    assert second.partition and parts(second.partition) == {"compute": 40}


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 3), (4, 4), (4, 8), (3, 1)])
def test_bubble_of_equal_stages_with_free_transfer(stages: int, microbatches: int) -> None:
    """GPipe: (p-1)/(m+p-1) of the pipeline phase on every rank."""
    job = fill(result(gpipe(stages, microbatches)))
    first, last = pipeline_phase(job) or (0.0, 0.0)
    expected = (stages - 1) / (microbatches + stages - 1) * (last - first)
    assert [ranks.bubble_seconds for ranks in job.ranks] == pytest.approx([expected] * stages)


def test_no_bubble_without_a_pipeline() -> None:
    assert fill(result([[compute(0, 1)]])).ranks[0].bubble_seconds is None


# -- the definition read instant by instant, as the reference --------------------------------------------------------


@st.composite
def ranks_(draw: st.DrawFn) -> tuple[list[Span], int]:
    """A rank with whole-second times whose ops start as the replay would have them start."""
    free: dict[str, int] = {}
    host = 0
    spans: list[Span] = []
    small = st.integers(0, 4)
    for row in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["compute", "compute", "collective", "recv", "wait", "host_sync"]))
        communicates = kind in COMMUNICATION
        stream = draw(st.sampled_from(["a", "b", "c"] if communicates else ["a", "b"]))
        deps = sorted(draw(st.sets(st.integers(0, row - 1), max_size=2))) if row else []
        host += draw(st.sampled_from([0, 0, 0, 3]))
        able = max([free.get(stream, 0), *(int(spans[dep].end) for dep in deps)])
        start = max(able, host)
        transfer = start + (draw(small) if communicates else 0)
        end = transfer + (draw(small) if communicates or kind == "compute" else 0)
        spans.append(
            Span(kind, start, end, kind, stream, transfer if communicates else None, deps, host=host > able)
        )  # fmt: skip
        free[stream] = end
        if kind == "host_sync":
            host = end
    return spans, max([int(span.end) for span in spans], default=0) + draw(small)


def line_at(spans: Sequence[Span], t: float) -> str:
    """The line an instant belongs to, word by word from the definition."""

    def running(span: Span, low: float, high: float) -> bool:
        return low <= t < high

    def transfer(span: Span) -> float:
        return span.start if span.transfer_start is None else span.transfer_start

    communication = [row for row, span in enumerate(spans) if span.kind in COMMUNICATION]
    if any(running(span, span.start, span.end) for span in spans if span.kind == "compute"):
        return "compute"
    if any(running(spans[row], transfer(spans[row]), spans[row].end) for row in communication):
        return "exposed_transfer"
    next_ops = [
        next((r for r, s in enumerate(spans) if s.stream == stream and is_consumer(s) and s.start > t), None)
        for stream in {span.stream for span in spans}
    ]
    left = [row for row in next_ops if row is not None]
    needed = set().union(*(prerequisites(spans, row) for row in left)) if left else set(communication)
    if any(running(spans[row], spans[row].start, transfer(spans[row])) for row in communication if row in needed):
        return "exposed_wait"
    for row, span in enumerate(spans):
        before = [s.end for r, s in enumerate(spans) if r < row and (s.stream == span.stream or r in span.deps)]
        if span.host and running(span, max(before, default=0), span.start):
            return "host"
    busy = [span for span in spans if span.kind == "compute" or span.kind in COMMUNICATION]
    if not busy or t < min(span.start for span in busy):
        return "idle_before"
    return "idle_after" if t >= max(span.end for span in busy) else "idle_dependency"


def is_consumer(span: Span) -> bool:
    return span.kind in ("compute", "host_sync")


def prerequisites(spans: Sequence[Span], row: int) -> set[int]:
    direct = {
        r for r, s in enumerate(spans[:row])
        if r in spans[row].deps or s.stream == spans[row].stream or s.kind == "host_sync"
    }  # fmt: skip
    return direct.union(*(prerequisites(spans, other) for other in direct))


@settings(max_examples=150, deadline=None)
@given(ranks_())
def test_partition_is_the_definition(rank: tuple[list[Span], int]) -> None:
    spans, step = rank
    found = split(spans, step)
    instants = [line_at(spans, second + 0.5) for second in range(step)]
    assert {name: getattr(found, f"{name}_seconds") for name in LINES} == {name: instants.count(name) for name in LINES}


@settings(max_examples=50, deadline=None)
@given(ranks_(), st.floats(1e-7, 1e3))
def test_parts_add_up(rank: tuple[list[Span], int], second: float) -> None:
    """In any unit of time: parts are not negative and sum to the step; hidden and exposed are all there is."""
    spans = [
        Span(
            s.name, s.start * second, s.end * second, s.kind, s.stream,
            None if s.transfer_start is None else s.transfer_start * second, s.deps, s.host,
        )
        for s in rank[0]
    ]  # fmt: skip
    step = rank[1] * second
    found = split(spans, step)
    values = [getattr(found, f"{name}_seconds") for name in LINES]
    assert min(values) >= 0
    assert sum(values) == pytest.approx(step, rel=1e-9)
    assert abs(found.sum_minus_step_seconds) <= 1e-9 * step
    transfers = sorted((s.transfer_start, s.end) for s in spans if s.transfer_start is not None)
    assert found.hidden_transfer_seconds + found.exposed_transfer_seconds == pytest.approx(union(transfers), rel=1e-9)
    under_compute = found.hidden_transfer_seconds + found.hidden_wait_seconds
    assert under_compute <= found.communication_seconds * (1 + 1e-9)
    assert found.overlap is None or 0 <= found.overlap <= 1


def union(intervals: list[tuple[float, float]]) -> float:
    total, reached = 0.0, 0.0
    for start, end in intervals:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
