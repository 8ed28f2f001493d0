"""Whose exposed time it is, compute by phase, the critical path, slack, stragglers: hand cases and identities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import collective, compute, job, replay, star, wait
from made_results import fsdp_result
from test_bubbles import as_result
from test_partition import ranks_

from emulator.report.critical import composition, kind_key, slack
from emulator.report.exposure import by_kind, by_phase, expose
from emulator.report.hints import hints
from emulator.report.history import history_of
from emulator.report.kinds import kind_of_group, pipeline_messages
from emulator.report.partition import fill
from emulator.report.pieces import cut
from emulator.report.ranks import class_of_rank, peer_rank, rank_ranges
from emulator.result.build import Span, result
from emulator.result.schema import CollectiveUse, Result
from emulator.trace.schema import BlockUse

SECOND = 1_000_000_000


def exposed(made: Result, rank_class: int = 0) -> dict[str, tuple[float, float]]:
    return {e.kind: (e.transfer_seconds, e.wait_seconds) for e in made.ranks[rank_class].exposed}


def gather(start: float, transfer: float, end: float, group: str, **more: object) -> Span:
    fields = {"kind": "collective", "stream": group, "transfer_start": transfer, "group": group, **more}
    return Span("c10d::op", start, end, collective="all_gather", **fields)  # type: ignore[arg-type]


def on_the_path(made: Result) -> dict[str, float]:
    return dict(composition(made, kind_key))


def test_ten_percent_exposed_is_all_of_one_kind() -> None:
    """90 us of compute and a synchronous 10 us all-reduce of the tp group."""
    spans = [
        Span("mm", 0, 60, phase="forward"),
        gather(60, 60, 70, "tp", stream="compute"),
        Span("mm", 70, 100, phase="backward"),
    ]
    made = fill(result([spans]))
    assert exposed(made) == {"TP": (10, 0)}
    assert made.ranks[0].compute_phases == {"forward": 60, "backward": 30}
    assert on_the_path(made) == {"compute, forward": 60, "compute, backward": 30, "TP all_gather": 10}


def test_the_op_that_is_needed_last_takes_the_instant() -> None:
    """Compute at 30 needs tp (over at 20) and fsdp (over at 30): fsdp held it all the time, tp nobody."""
    spans = [gather(0, 0, 20, "tp"), gather(0, 0, 30, "fsdp"), Span("mm", 30, 40, deps=[0, 1])]
    assert exposed(fill(result([spans]))) == {"FSDP": (30, 0)}


def test_a_transfer_that_nobody_needs_takes_nothing() -> None:
    spans = [gather(0, 0, 50, "dp"), gather(0, 0, 30, "ep"), Span("mm", 30, 60, deps=[1])]
    assert exposed(fill(result([spans]))) == {"EP": (30, 0)}


def test_instants_that_are_nobodys_are_shared_equally() -> None:
    """The host issues the next op at 30 whatever the transfers do: each is as much to blame as the other."""
    spans = [gather(0, 0, 30, "tp"), gather(0, 0, 10, "cp"), Span("mm", 30, 40, host=True)]
    assert exposed(fill(result([spans]))) == {"TP": (25, 0), "CP": (5, 0)}


def test_waiting_behind_a_queue_goes_to_the_op_waited_for() -> None:
    """Two collectives on one stream; the first waits for a peer from 0 to 20, the second is what compute needs."""
    spans = [gather(0, 20, 25, "ep"), gather(25, 30, 40, "ep"), Span("mm", 40, 41, deps=[1])]
    assert exposed(fill(result([spans]))) == {"EP": (15, 25)}


def test_phases_that_compute_together_share_the_instant() -> None:
    spans = [Span("mm", 0, 10, phase="forward"), Span("mm", 4, 8, phase="optimizer", stream="side")]
    assert fill(result([spans])).ranks[0].compute_phases == {"forward": 8, "optimizer": 2}


@pytest.mark.parametrize(("group", "kind", "name"), [
    ("tp", "collective", "TP"), ("fsdp", "collective", "FSDP"), ("dp_shard", "collective", "FSDP"),
    ("dp_replicate", "collective", "DP"), ("", "send", "PP"), ("pp", "recv", "PP"), ("cp", "send", "CP"),
    ("world", "collective", "world"), ("", "collective", "other"),
])  # fmt: skip
def test_kinds_of_groups(group: str, kind: str, name: str) -> None:
    assert kind_of_group(group, kind) == name


def test_a_ring_inside_another_group_is_no_pipeline() -> None:
    ring = [Span("recv", 0, 4, "recv", "cp", 3, group="cp"), Span("mm", 4, 6, deps=[0], phase="forward")]
    made = fill(result([ring]))
    assert made.ranks[0].bubble_seconds is None and exposed(made) == {"CP": (1, 3)}
    assert not pipeline_messages(made.programs[0]).any()


def test_a_late_rank_is_the_straggler_and_its_compute_the_path() -> None:
    """Four ranks all-gather at 30 when the late one comes; it takes 2. The others wait 20 each."""
    early = [
        Span("mm", 0, 10, phase="forward"),
        gather(10, 30, 32, "tp", stream="compute", arrived_last=1),
        Span("mm", 32, 40, phase="backward"),
    ]
    late = [
        Span("mm", 0, 30, phase="forward"),
        gather(30, 30, 32, "tp", stream="compute"),
        Span("mm", 32, 40, phase="backward"),
    ]
    made = fill(result([early, late], [3, 1]))
    assert exposed(made, 0) == {"TP": (2, 20)} and exposed(made, 1) == {"TP": (2, 0)}
    first, second = (ranks.lateness for ranks in made.ranks)
    assert first and (first.collectives, first.waiting_seconds) == (0, 0)
    assert second and (second.collectives, second.waiting_seconds, second.exposed_seconds) == (1, 60, 60)
    assert on_the_path(made) == {"compute, forward": 30, "compute, backward": 8, "TP all_gather": 2}
    assert [values.tolist() for values in slack(history_of(made))] == [[20, 0, 0], [0, 0, 0]]
    assert any("ranks 3 come last to 1 collective" in hint.text and "37.5 %" in hint.text for hint in hints(made))


def test_slack_reaches_across_ranks() -> None:
    """Rank 1 arrives at 5 for a transfer that starts at 10, after which rank 0 has 3 more to go than rank 1."""
    one = [Span("mm", 0, 10), gather(10, 10, 12, "tp", stream="compute"), Span("mm", 12, 20)]
    two = [
        Span("mm", 0, 5),
        gather(5, 10, 12, "tp", stream="compute", arrived_last=0),
        Span("mm", 12, 17),
    ]
    assert [values.tolist() for values in slack(history_of(fill(result([one, two]))))] == [[0, 0, 0], [5, 0, 3]]


def test_host_time_is_on_the_path_back_to_the_last_synchronisation() -> None:
    spans = [
        Span("mm", 0, 10),
        Span("sync", 10, 10, kind="host_sync", stream="host", deps=[0]),
        Span("mm", 14, 20, host=True),
    ]
    assert on_the_path(fill(result([spans]))) == {"compute, no phase": 16, "host": 4}


def test_a_pipeline_hop_leads_the_path_to_the_sender() -> None:
    sender = [Span("mm", 0, 8, phase="forward"), Span("send", 8, 10, "send", "pp", 8, [0], group="pp", peer="1")]
    receiver = [
        Span("recv", 0, 10, "recv", "pp", 8, group="pp", arrived_last=0, peer="0"),
        Span("mm", 10, 13, phase="forward", deps=[0]),
    ]
    made = fill(result([sender, receiver]))
    assert on_the_path(made) == {"compute, forward": 11, "PP send/recv": 2}
    assert made.path and made.path.rank_class.tolist() == [1, 1, 0]


@settings(max_examples=100, deadline=None)
@given(ranks_())
def test_kinds_and_phases_add_up_to_their_lines(rank: tuple[list[Span], int]) -> None:
    """On any rank: exposed kinds to both exposed lines, phases to compute, the path to the step."""
    spans, _ = rank
    made = fill(result([spans]))
    found = made.ranks[0].partition
    assert found is not None
    history = history_of(made)
    pieces = cut(made.programs[0], history.ranks[0].spans, made.step_seconds)
    exposure = expose(history, 0, pieces)
    assert exposure.transfer.sum() == pytest.approx(found.exposed_transfer_seconds, rel=1e-9, abs=1e-9)
    assert exposure.wait.sum() == pytest.approx(found.exposed_wait_seconds, rel=1e-9, abs=1e-9)
    kinds = by_kind(made.programs[0], exposure)
    assert sum(k.wait_seconds for k in kinds) == pytest.approx(found.exposed_wait_seconds, rel=1e-9, abs=1e-9)
    phases = by_phase(history, 0, pieces, pieces.lengths)
    assert sum(phases.values()) == pytest.approx(found.compute_seconds, rel=1e-9, abs=1e-9)
    path = made.path
    assert path is not None
    assert float((path.end - path.start).sum()) == pytest.approx(made.step_seconds, rel=1e-9, abs=1e-12)
    assert all(path.start[:-1] == path.end[1:])
    assert all((values[~np.isnan(values)] >= 0).all() for values in slack(history))


seconds = st.sampled_from([0.25, 0.5, 1.0, 3.0])


@settings(max_examples=30, deadline=None)
@given(
    times=st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=5),
    sizes=st.lists(st.sampled_from([0, SECOND // 3, SECOND]), min_size=5, max_size=5),
    ahead=st.booleans(),
)
def test_paths_of_replayed_jobs_are_explained_in_full(tmp_path_factory, times, sizes, ahead) -> None:  # type: ignore[no-untyped-def]
    """Three ranks with compute of their own lengths and an all-gather per round: nothing on the path is unexplained,
    and an op lengthened by less than its slack leaves the step as it was.
    """
    programs = []
    for rank in range(3):
        ops = []
        for i, own in enumerate(times):
            n = 3 * i
            ops.append(compute(n, own[rank], phase="forward"))
            ops.append(collective(n + 1, "all_gather", "fsdp", 3 * (sizes[i] // 3), deps=[n]))
            ops.append(wait(n + 2, n + 1 if not ahead or i == 0 else n - 2))
        programs.append(ops)
    fabric = star(tmp_path_factory.mktemp("star"), 3)
    made = fill(as_result(replay(job({"fsdp": 3}, *programs), fabric)))
    path = made.path
    assert path is not None and "other" not in path.what.values
    assert float((path.end - path.start).sum()) == pytest.approx(made.step_seconds, rel=1e-9)
    margins = slack(history_of(made))
    for ranks in made.ranks:
        rank = int(ranks.ranks.split("-")[0].split(",")[0])
        row = int(margins[ranks.rank_class][::3].argmax()) * 3
        spare = float(margins[ranks.rank_class][row])
        slower = [list(ops) for ops in programs]
        for member in [r for first, last in rank_ranges(ranks.ranks) for r in range(first, last + 1)][:1]:
            assert member == rank
            slower[member][row] = compute(row, float(slower[member][row].duration) + 0.99 * spare, phase="forward")
        assert replay(job({"fsdp": 3}, *slower), fabric).step_seconds == pytest.approx(made.step_seconds, rel=1e-9)


def test_a_steady_state_shown_once_counts_as_often_as_it_happened(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """400 rounds of compute 2, gather 1 (exposed), compute 1 on two ranks, jumped over or replayed one by one."""
    rounds = [
        compute(0, 2.0, phase="forward", deps=[]),
        collective(1, "all_gather", "fsdp", 2 * SECOND, stream="compute"),
        compute(2, 1.0, phase="backward"),
    ]
    trace = job({"fsdp": 2}, [BlockUse("round", 400), compute(0, 5.0, phase="optimizer")], blocks={"round": rounds})
    fabric = star(tmp_path, 2)
    jumped, played = (fill(as_result(replay(trace, fabric, jump_repeats=jump))) for jump in (True, False))
    assert jumped.omitted and not played.omitted
    for made in (jumped, played):
        assert made.step_seconds == pytest.approx(400 * 4 + 5)
        assert exposed(made) == {"FSDP": (pytest.approx(400), 0)}
        assert made.ranks[0].compute_phases == pytest.approx({"forward": 800, "backward": 400, "optimizer": 5})
        assert on_the_path(made) == pytest.approx(
            {"compute, forward": 800, "compute, backward": 400, "FSDP all_gather": 400, "compute, optimizer": 5}
        )
        path = made.critical_path()
        lengths = (path["end_seconds"] - path["start_seconds"]) * path["repeats"]
        assert lengths.sum() == pytest.approx(made.step_seconds, rel=1e-9)


def test_ranks_and_peers_as_a_result_writes_them() -> None:
    assert rank_ranges("0-7,16") == [(0, 7), (16, 16)] and rank_ranges("") == []
    members = [(0, 7, 0), (8, 15, 1), (16, 16, 0)]
    assert [class_of_rank(members, rank) for rank in (0, 7, 8, 16, 17)] == [0, 0, 1, 0, None]
    mesh = {"pp": 4, "dp": 2}
    assert peer_rank("pp+1", 1, mesh) == 3 and peer_rank("pp+1", 7, mesh) == 1
    assert peer_rank("pp-1,dp+1", 2, mesh) == 1 and peer_rank("5", 0, mesh) == 5
    assert peer_rank("cp+1", 0, mesh) is None and peer_rank("", 0, mesh) is None


def test_no_hint_without_its_figures() -> None:
    assert hints(result([[Span("mm", 0, 1)]])) == []


def test_hints_say_their_figures() -> None:
    made = fsdp_result()
    made.collectives = [CollectiveUse(
        "all_gather", "fsdp", 8, 0, 4, 218_000_000, "bfloat16", "ring", 2e-3, 1e-3, 0.0, 109e9, 95.4e9, 0.5
    )]  # fmt: skip
    found = {hint.rule: hint.text for hint in hints(made)}
    assert found == {
        "exposed_fsdp": "8.0 % of the step is exposed FSDP transfer at 8192 tokens per rank and step: more tokens per "
        "rank, or fewer FSDP ranks per parameter, hide it",
        "congestion": "FSDP all_gather of 218 MB takes 2 ms, 1 ms alone: links are shared (50.0 % of the time)",
    }
