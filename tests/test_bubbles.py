"""Bubbles by cause: schedules replayed on stages of known lengths, against the textbook."""

from __future__ import annotations

import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import compute, job, recv, replay, send, star, wait
from made_results import gpipe

from emulator.report.bubbles import CAUSES
from emulator.report.history import History
from emulator.report.partition import fill
from emulator.report.pieces import pipeline_phase
from emulator.result.build import Span, result

SECOND = 1_000_000_000  # bytes that take a second on the star


def schedule(stage, stages, microbatches, kind):
    """The actions of one stage: ("F" | "B", microbatch)."""
    if kind == "gpipe":
        return [(d, m) for d in "FB" for m in range(microbatches)]
    warm = min(stages - stage, microbatches)
    actions = [("F", m) for m in range(warm)]
    for m in range(microbatches):
        actions.append(("B", m))
        if m + warm < microbatches:
            actions.append(("F", m + warm))
    return actions


def pipeline(stages, microbatches, kind, times, size=0, host=0.0):
    """One program per stage; each direction of each hop has a stream of its own, receives are posted up front."""
    programs = []
    for stage in range(stages):
        ops = []
        forward, backward = times[stage]
        for action, m in schedule(stage, stages, microbatches, kind):
            seconds, phase, towards = (forward, "forward", 1) if action == "F" else (backward, "backward", -1)
            tags = {"microbatch": m, "stage": stage, "phase": phase}
            if 0 <= stage - towards < stages:
                ops.append(recv(len(ops), stage - towards, size, stream=f"{action} in", tag=m))
                ops.append(wait(len(ops), len(ops) - 1))
            ops.append(compute(len(ops), seconds, host_seconds=host, **tags))
            if 0 <= stage + towards < stages:
                ops.append(send(len(ops), stage + towards, size, stream=f"{action} out", deps=[len(ops) - 1], tag=m))
        programs.append(ops)
    return job({"pp": stages}, *programs)


def replayed(tmp_path, *args, **more):
    trace = pipeline(*args, **more)
    return fill(as_result(replay(trace, star(tmp_path, args[0]))))


def as_result(found):
    """A result with what a replay found."""
    made = result([[]])
    for name in ("step_seconds", "ranks", "programs", "timeline", "collectives", "links", "folding", "omitted"):
        setattr(made, name, getattr(found, name))
    made.world_size = sum(ranks.count for ranks in found.ranks)
    return made


def causes(ranks):
    """The causes that are not nothing."""
    found = {cause: getattr(ranks.bubble, f"{cause}_seconds") for cause in CAUSES}
    return {cause: value for cause, value in found.items() if value > 1e-9}


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (3, 5), (4, 8), (4, 2)])
def test_gpipe_with_equal_stages_only_fills_and_drains(tmp_path, stages, microbatches) -> None:
    """(p-1)/(m+p-1) of the phase: stage s waits s F before, (p-1-s)(F+B) in the middle, s B at the end."""
    made = replayed(tmp_path, stages, microbatches, "gpipe", [(1.0, 2.0)] * stages)
    first, last = pipeline_phase(made)
    for stage, ranks in enumerate(made.ranks):
        assert ranks.bubble_seconds == pytest.approx((stages - 1) / (microbatches + stages - 1) * (last - first))
        filling, draining = stage * 1.0 + (stages - 1 - stage) * 3.0, stage * 2.0
        assert causes(ranks) == pytest.approx({c: v for c, v in (("fill", filling), ("drain", draining)) if v})


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (3, 7)])
def test_1f1b_with_equal_stages_only_fills_and_drains(tmp_path, stages, microbatches) -> None:
    """Stage s waits s F for its first forward, (p-1-s) B for its first backward; what is left (F each) drains."""
    made = replayed(tmp_path, stages, microbatches, "1f1b", [(1.0, 2.0)] * stages)
    first, last = pipeline_phase(made)
    for stage, ranks in enumerate(made.ranks):
        assert ranks.bubble_seconds == pytest.approx((stages - 1) / (microbatches + stages - 1) * (last - first))
        filling = stage * 1.0 + (stages - 1 - stage) * 2.0
        draining = stage * 2.0 + (stages - 1 - stage) * 1.0
        assert causes(ranks) == pytest.approx({"fill": filling, "drain": draining})


@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from([pipelines.gpipe, pipelines.one_f_one_b, pipelines.interleaved, pipelines.zb_h1]),
    stages=st.integers(2, 5),
    microbatches=st.integers(1, 8),
    times=st.sampled_from([(1.0, 2.0), (1.0, 1.0), (2.0, 1.0), (0.3, 1.7)]),
)
def test_equal_stages_and_free_transfers_fill_and_drain_only(
    tmp_path_factory, order, stages, microbatches, times
) -> None:
    """Whatever the order of work: stages that hold a backlog for each other are not slower for that."""
    forward, backward = times
    groups = stages if order is pipelines.interleaved else 1  # microbatches in groups of p
    seconds = {"F": forward, "B": backward, "I": backward / 2, "W": backward / 2}
    trace = pipelines.pipeline_job(order(stages, microbatches * groups), seconds, size=0)
    made = fill(as_result(replay(trace, star(tmp_path_factory.mktemp("star"), stages))))
    for ranks in made.ranks:
        assert set(causes(ranks)) <= {"fill", "drain"}
        assert sum(causes(ranks).values()) == pytest.approx(ranks.bubble_seconds)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("slower", [1.01, 1.3])
def test_imbalance_is_at_most_what_the_slow_stage_works_longer(tmp_path, kind, slower) -> None:
    """16 microbatches of 3 s: a last stage slower by 1 % costs 0.48 s, not every wait for it."""
    made = replayed(tmp_path, 4, 16, kind, [(1.0, 2.0)] * 3 + [(slower, 2 * slower)])
    for ranks in made.ranks[:3]:
        assert causes(ranks)["imbalance"] == pytest.approx(48 * (slower - 1))
    assert "imbalance" not in causes(made.ranks[3])


def test_the_hand_made_pipeline_says_the_same() -> None:
    for stage, ranks in enumerate(fill(result(gpipe(4, 8))).ranks):
        assert causes(ranks) == pytest.approx(
            {c: v for c, v in (("fill", stage + (3 - stage) * 3.0), ("drain", stage * 2.0)) if v}
        )


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_one_slow_stage_is_imbalance(tmp_path, kind, slow) -> None:
    """A stage twice as slow costs the others (m-1)(F+B) more than filling and draining do: that is imbalance."""
    times = [(2.0, 4.0) if stage == slow else (1.0, 2.0) for stage in range(4)]
    made = replayed(tmp_path, 4, 16, kind, times)
    for stage, ranks in enumerate(made.ranks):
        found = causes(ranks)
        if stage == slow:
            assert "imbalance" not in found
        else:
            assert found["imbalance"] == max(found.values())
            assert found["imbalance"] >= 15 * 3.0 - 6.0
        assert sum(found.values()) == pytest.approx(ranks.bubble_seconds)


def test_slow_hops_are_transfer_not_imbalance(tmp_path) -> None:
    """Equal stages, hops of 0.1 s: all that is neither fill nor drain comes from the hops."""
    made = replayed(tmp_path, 4, 16, "1f1b", [(1.0, 2.0)] * 4, size=SECOND // 10)
    for ranks in made.ranks:
        found = causes(ranks)
        assert "imbalance" not in found and found["transfer"] > 0.15
        # While the hops of the first microbatch delay it the ranks still have work: they see it travel later.
        assert found.get("fill", 0) + found.get("drain", 0) == pytest.approx(9.0, rel=0.03)


def test_a_slow_stage_behind_slow_hops_is_still_imbalance(tmp_path) -> None:
    times = [(2.0, 4.0) if stage == 2 else (1.0, 2.0) for stage in range(4)]
    made = replayed(tmp_path, 4, 16, "1f1b", times, size=SECOND // 100)
    for stage in (0, 1, 3):
        found = causes(made.ranks[stage])
        assert found["imbalance"] > 0.7 * made.ranks[stage].bubble_seconds


def test_collectives_inside_a_stage_are_its_work() -> None:
    """Stage 1 waits for stage 0, which computes, all-reduces in its own group, and computes again: that is filling."""
    first = [
        Span("mm", 0, 2, phase="forward", microbatch=0),
        Span("ar", 2, 5, "collective", "compute", 2, group="tp", phase="forward", microbatch=0),
        Span("mm", 5, 6, phase="forward", microbatch=0),
        Span("send", 6, 7, "send", "pp", 6, [2], group="pp"),
    ]
    second = [
        Span("recv", 0, 7, "recv", "pp", 6, group="pp", arrived_last=0),
        Span("mm", 7, 9, phase="forward", microbatch=0, deps=[0]),
    ]
    made = fill(result([first, second]))
    assert causes(made.ranks[1]) == {"fill": 6}


def test_a_late_host_is_the_cause() -> None:
    """Stage 1 waits for a message whose send stage 0 issues only at 5, long after its compute."""
    first = [
        Span("mm", 0, 1, phase="forward", microbatch=0),
        Span("send", 5, 5, "send", "pp", 5, [0], group="pp", host=True),
    ]
    second = [
        Span("recv", 0, 5, "recv", "pp", 5, group="pp", arrived_last=0),
        Span("mm", 5, 6, phase="forward", microbatch=0, deps=[0]),
    ]
    made = fill(result([first, second]))
    assert causes(made.ranks[1]) == {"host": 5}


def test_who_held_a_stage_with_a_receive_posted_early() -> None:
    """The receive stands since 0, an independent forward runs 0-3. Until 5 the peer computes its first backward, which
    is filling; then it is busy with a second one before it sends what is waited for."""
    sender = [
        Span("mm", 0, 5, phase="backward", microbatch=0),
        Span("mm", 5, 8, phase="backward", microbatch=1),
        Span("send", 8, 9, "send", "pp", 8, [1], group="pp"),
    ]
    receiver = [
        Span("recv", 0, 9, "recv", "pp", 8, group="pp", arrived_last=0),
        Span("mm", 0, 3, phase="forward", microbatch=2),
        Span("mm", 9, 10, phase="backward", microbatch=1, deps=[0]),
        Span("mm", 10, 11, phase="forward", microbatch=3),
    ]
    made = fill(result([sender, receiver]))
    found = made.ranks[1].partition
    assert found and (found.compute_seconds, found.exposed_wait_seconds, found.exposed_transfer_seconds) == (5, 5, 1)
    assert causes(made.ranks[1]) == {"fill": 2, "imbalance": 3}


@settings(max_examples=25, deadline=None)
@given(
    stages=st.integers(2, 4),
    microbatches=st.integers(1, 6),
    kind=st.sampled_from(["gpipe", "1f1b"]),
    times=st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)), min_size=4, max_size=4),
    size=st.sampled_from([0, SECOND // 7, SECOND]),
    host=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_causes_add_up_on_any_pipeline(tmp_path_factory, stages, microbatches, kind, times, size, host) -> None:
    folder = tmp_path_factory.mktemp("star")
    made = replayed(folder, stages, microbatches, kind, times[:stages], size=size, host=host)
    for ranks in made.ranks:
        assert sum(causes(ranks).values()) == pytest.approx(ranks.bubble_seconds, abs=1e-7)
        assert min(getattr(ranks.bubble, f"{cause}_seconds") for cause in CAUSES) >= 0
    path = made.path
    assert path and float((path.end - path.start).sum()) == pytest.approx(made.step_seconds, rel=1e-9)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_work_taken_in_one_step_gives_what_every_op_by_itself_gives(tmp_path, monkeypatch, kind) -> None:
    """Four ops to a microbatch: walking back over all of them at once must not change a cause."""
    times = [(1.0, 2.0), (2.0, 3.5), (1.0, 2.0)]
    trace = pipeline(3, 6, kind, times, size=SECOND // 7)
    for program in trace.programs:
        program.ops = [
            part
            for op in program.ops
            for part in (
                [compute(1000 * (i + 1) + op.id, op.duration / 4, phase=op.phase, microbatch=op.microbatch)
                 for i in range(3)] + [compute(op.id, op.duration / 4, phase=op.phase, microbatch=op.microbatch)]
                if op.kind == "compute" else [op]
            )
        ]  # fmt: skip
    found = as_result(replay(trace, star(tmp_path, 3)))
    fast = [causes(ranks) for ranks in fill(found).ranks]
    whole = History.walk_back

    def op_by_op(history, target, **options):
        return whole(history, target, **options | {"whole_work": False})

    monkeypatch.setattr(History, "walk_back", op_by_op)
    assert [causes(ranks) for ranks in fill(found).ranks] == [pytest.approx(own) for own in fast]
    assert all("imbalance" in own for own in (fast[0], fast[2]))
