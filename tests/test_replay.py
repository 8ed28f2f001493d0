"""Small jobs replayed on a switch, with the times worked out by hand beside them (1 GB/s, sizes in MB: 1 MB = 1 ms)."""

from __future__ import annotations

import pytest

from emulator.errors import AnswerIsNo, InputError
from emulator.trace.schema import BlockUse, Group, Op, PerRank
from tests.built import build
from tests.jobs import collective, compute, job, parts, recv, replay, send, spans, star, wait

MS = 1e-3
MB = 10**6


def near(*values):
    return pytest.approx(values, rel=1e-12, abs=1e-15, nan_ok=True)


def test_streams_run_beside_each_other(tmp_path):
    trace = job({"dp": 1}, [compute(0, 3 * MS), compute(1, 2 * MS, stream="copy"), compute(2, 1 * MS)])
    found = spans(replay(trace, star(tmp_path, 2)))
    assert found[1][0] == 0
    assert (found[2][0], found[2][2]) == near(3 * MS, 4 * MS)


def test_a_collective_starts_with_its_last_member(tmp_path):
    """Rank 1 comes at 5 ms; a ring of 2 then moves half of 4 MB each way: 2 ms."""
    early = [compute(0, 1 * MS), collective(1, "all_gather", "dp", 4 * MB, deps=[0]), wait(2, 1), compute(3, 1 * MS)]
    late = [compute(0, 5 * MS), *early[1:]]
    found = replay(job({"dp": 2}, early, late), star(tmp_path, 2))
    assert spans(found, 0)[1] == near(1 * MS, 5 * MS, 7 * MS)
    assert spans(found, 1)[1] == near(5 * MS, 5 * MS, 7 * MS)
    assert found.step_seconds == pytest.approx(8 * MS)


def test_an_asynchronous_collective_hides_under_compute(tmp_path):
    program = [
        compute(0, 1 * MS), collective(1, "all_reduce", "dp", 4 * MB, deps=[0]), compute(2, 10 * MS), wait(3, 1),
        compute(4, 1 * MS),
    ]  # fmt: skip
    found = replay(job({"dp": 2}, program), star(tmp_path, 2))
    assert found.step_seconds == pytest.approx(12 * MS)
    assert parts(found).overlap == pytest.approx(1.0)


def test_a_wait_blocks_the_stream(tmp_path):
    program = [collective(0, "all_reduce", "dp", 4 * MB), wait(1, 0), compute(2, 1 * MS)]
    found = spans(replay(job({"dp": 2}, program), star(tmp_path, 2)))
    assert found[2][0] == pytest.approx(4 * MS)


def test_a_synchronous_collective_runs_on_the_issuing_stream(tmp_path):
    program = [compute(0, 1 * MS), collective(1, "all_reduce", "dp", 4 * MB, stream="compute"), compute(2, 1 * MS)]
    assert replay(job({"dp": 2}, program), star(tmp_path, 2)).step_seconds == pytest.approx(6 * MS)


def test_collectives_of_one_group_go_in_issue_order_on_any_stream(tmp_path):
    program = [
        collective(0, "all_reduce", "dp", 4 * MB, stream="a"),
        collective(1, "all_reduce", "dp", 2 * MB, stream="b"),
    ]
    found = spans(replay(job({"dp": 2}, program), star(tmp_path, 2)))
    assert found[1][0] == pytest.approx(4 * MS)


def test_a_message_leaves_when_both_sides_are_there(tmp_path):
    first = [compute(0, 8 * MS), send(1, {"pp": 1}, 2 * MB)]
    second = [recv(0, {"pp": -1}, 2 * MB), wait(1, 0), compute(2, 1 * MS)]
    first[1].deps = [0]
    found = replay(job({"pp": 2}, first, second), star(tmp_path, 2))
    assert spans(found, 1)[0] == near(0, 8 * MS, 10 * MS)


def test_lone_messages_queue_per_peer_and_direction(tmp_path):
    """To one peer one after the other, from another at once; a batch starts together."""
    middle = [send(0, 1, 2 * MB), send(1, 1, 2 * MB), recv(2, 1, 2 * MB)]
    other = [recv(0, 0, 2 * MB), recv(1, 0, 2 * MB), send(2, 0, 2 * MB)]
    found = spans(replay(job({"pp": 2}, middle, other), star(tmp_path, 2)))
    assert [found[i][0] for i in range(3)] == near(0, 2 * MS, 0)
    batch = [send(0, 1, 2 * MB, batch=7, tag=1), send(1, 1, 4 * MB, batch=7, tag=2), wait(2, 0), compute(3, 1 * MS)]
    other = [recv(0, 0, 2 * MB, batch=7, tag=1), recv(1, 0, 4 * MB, batch=7, tag=2)]
    found = spans(replay(job({"pp": 2}, batch, other), star(tmp_path, 2)))
    assert (found[0][0], found[1][0]) == near(0, 0)
    assert (found[0][2], found[1][2]) == near(4 * MS, 6 * MS)  # they share the link until the small one is over
    assert found[3][0] == pytest.approx(6 * MS)  # the unit ends with its last part


def test_a_lone_send_waits_for_the_compute_before_it_on_its_stream(tmp_path):
    first = [compute(0, 5 * MS), send(1, 1, 2 * MB, stream="compute"), compute(2, 1 * MS)]
    second = [recv(0, 0, 2 * MB, stream="compute"), compute(1, 1 * MS)]
    found = replay(job({"pp": 2}, first, second), star(tmp_path, 2))
    assert spans(found, 0)[1] == near(5 * MS, 5 * MS, 7 * MS)
    assert spans(found, 1)[1][0] == pytest.approx(7 * MS)


def test_host_time_holds_ops_back(tmp_path):
    program = [compute(i, 1 * MS, host_seconds=3 * MS) for i in range(3)]
    found = replay(job({"dp": 1}, program), star(tmp_path, 2))
    assert [spans(found)[i][0] for i in range(3)] == near(3 * MS, 6 * MS, 9 * MS)
    assert parts(found).host_seconds == pytest.approx(9 * MS - 2 * MS)


def test_a_host_sync_holds_everything_issued_after_it(tmp_path):
    """The host waits for op 0 (4 ms), then needs 1 ms for each op: 5 and 6 ms; the sync itself is issued at 1 ms."""
    program = [
        compute(0, 4 * MS), Op(id=1, kind="host_sync", deps=[0], host_seconds=1 * MS),
        compute(2, 1 * MS, stream="side", host_seconds=1 * MS), compute(3, 1 * MS, host_seconds=1 * MS),
    ]  # fmt: skip
    found = spans(replay(job({"dp": 1}, program), star(tmp_path, 2)))
    assert (found[1][2], found[2][0], found[3][0]) == near(4 * MS, 5 * MS, 6 * MS)


def test_per_rank_durations_make_stragglers(tmp_path):
    slow = PerRank(["dp"], [1 * MS, 1 * MS, 6 * MS, 1 * MS])
    program = [compute(0, slow), collective(1, "all_reduce", "dp", 4 * MB, deps=[0]), wait(2, 1), compute(3, 1 * MS)]
    found = replay(job({"dp": 4}, program), star(tmp_path, 4))
    assert spans(found, 0)[1][1] == pytest.approx(6 * MS)
    assert found.folding.rank_classes < 4
    assert next(line.arrived_last.tolist() for line in found.timeline if line.stream == "comm") == [
        ranks.rank_class for ranks in found.ranks if ranks.ranks == "2"
    ]


def test_uneven_all_to_all_moves_its_own_bytes(tmp_path):
    """Rank 0 sends 6 MB to rank 1 and nothing else moves: 6 ms, where equal parts would take 2."""
    rows = [[0, 6 * MB], [0, 0]]
    op = Op(
        id=0, kind="collective", collective="all_to_all", group="ep", dtype="uint8", stream="comm", bytes_in=0,
        splits_in=PerRank(["ep"], rows), splits_out=PerRank(["ep"], [[0, 0], [6 * MB, 0]]),
    )  # fmt: skip
    found = replay(job({"ep": 2}, [op]), star(tmp_path, 2))
    assert found.step_seconds == pytest.approx(6 * MS)


def test_a_world_of_one_and_groups_of_one_are_legal_and_free(tmp_path):
    program = [compute(0, 1 * MS), collective(1, "all_reduce", "dp", 4 * MB, stream="compute"), compute(2, 1 * MS)]
    assert replay(job({"dp": 1}, program), star(tmp_path, 1)).step_seconds == pytest.approx(2 * MS)
    on_four = replay(job({"dp": 1, "tp": 4}, program), star(tmp_path, 4))
    assert on_four.step_seconds == pytest.approx(2 * MS)


def test_blocks_replay_as_written_out(tmp_path):
    body = [compute(0, 1 * MS), collective(1, "all_reduce", "dp", 2 * MB, deps=[0]), wait(2, [1, 1])]
    blocked = replay(job({"dp": 2}, [BlockUse("b", 4)], blocks={"b": body}), star(tmp_path, 2))
    flat = []
    for i in range(4):
        flat += [
            compute(3 * i, 1 * MS), collective(3 * i + 1, "all_reduce", "dp", 2 * MB, deps=[3 * i]),
            wait(3 * i + 2, *([3 * i - 2] if i else [])),
        ]  # fmt: skip
    assert blocked.step_seconds == pytest.approx(
        replay(job({"dp": 2}, flat), star(tmp_path, 2)).step_seconds, rel=1e-12
    )


def test_groups_entered_in_opposite_order_are_named(tmp_path):
    a, b = Group(ranks=[[0, 1]]), Group(ranks=[[0, 1]])
    first = [
        collective(0, "all_reduce", "a", MB, stream="compute"),
        collective(1, "all_reduce", "b", MB, stream="compute"),
    ]
    second = [
        collective(0, "all_reduce", "b", MB, stream="compute"),
        collective(1, "all_reduce", "a", MB, stream="compute"),
    ]
    with pytest.raises(AnswerIsNo, match=r"rank 0 .*'a'.* waits for rank 1 .*'b'") as caught:
        replay(job({"dp": 2}, first, second, groups={"a": a, "b": b}), star(tmp_path, 2))
    assert caught.value.exit_code == 1


def test_ranks_that_never_use_a_group_have_none(tmp_path):
    """Stage 0 has no experts: the communicators of its ranks are no groups of the replay."""
    dense, experts = [compute(0, 1 * MS)], [collective(0, "all_to_all", "ep", 4 * MB)]
    found = replay(job({"pp": 2, "ep": 2}, dense, experts, ranks=[(2, 0), (2, 1)]), star(tmp_path, 4), folding=False)
    assert spans(found, 0)[0][2] == pytest.approx(1 * MS)
    assert spans(found, 3)[0] == near(0, 0, 2 * MS)
    assert found.folding.groups == 1


def test_a_job_larger_than_the_topology_is_refused(tmp_path):
    with pytest.raises(InputError, match="4 ranks"):
        replay(job({"dp": 4}, [compute(0, 1.0)]), star(tmp_path, 2))


def test_the_three_hand_cases_of_the_partition(tmp_path):
    """All-reduce posted at 0, peer at 60, over at 80; a transfer of 20 takes 20 MB here."""
    us = MS  # the definitions count in any unit; here one unit is a millisecond
    reduce = collective(1, "all_reduce", "dp", 20 * MB)
    first = [reduce, compute(0, 70 * us), wait(2, 1), compute(3, 10 * us)]
    second = [compute(0, 60 * us), collective(1, "all_reduce", "dp", 20 * MB, deps=[0]), wait(2, 1)]
    found = replay(job({"dp": 2}, first, second), star(tmp_path, 2))
    one = parts(found, 0)
    assert (one.compute_seconds, one.exposed_transfer_seconds, one.hidden_wait_seconds) == near(
        80 * us, 10 * us, 60 * us
    )
    assert found.step_seconds == pytest.approx(90 * us)

    gather = collective(0, "all_gather", "tp", 100 * MB, stream="tp")
    groups = {"tp": Group(ranks=[[0, 1], [2, 3]])}
    receiver = [gather, recv(1, 2, 10 * MB), wait(2, 1)]
    helper = [gather]
    sender = [compute(1, 80 * us), send(2, 0, 10 * MB, deps=[1]), gather]
    idle = [gather]
    found = replay(job({"r": 4}, receiver, helper, sender, idle, groups=groups), star(tmp_path, 4))
    two = parts(found, 0)
    assert (two.exposed_transfer_seconds, two.exposed_wait_seconds) == near(60 * us, 30 * us)

    receiver = [recv(0, 1, 20 * MB), compute(1, 60 * us), wait(2, 0)]
    sender = [compute(0, 80 * us), send(1, 0, 20 * MB, deps=[0])]
    three = parts(replay(job({"r": 2}, receiver, sender), star(tmp_path, 2)), 0)
    assert (three.compute_seconds, three.exposed_wait_seconds, three.exposed_transfer_seconds) == near(
        60 * us, 20 * us, 20 * us
    )


def test_the_load_of_a_link_over_time(tmp_path):
    """Rank 0 sends 2 MB in 2 ms from 1 ms on, then 4 MB with another message beside it: half the rate, 8 ms."""
    first = [
        compute(0, 1 * MS),
        send(1, 1, 2 * MB, deps=[0]),
        wait(2, 1),
        send(3, 1, 4 * MB, deps=[2]),
        send(4, 2, 4 * MB, deps=[2]),
    ]
    second = [recv(0, 0, 2 * MB), recv(1, 0, 4 * MB)]
    third = [recv(0, 0, 4 * MB)]
    found = replay(job({"r": 3}, first, second, third), star(tmp_path, 3))
    load = found.link_loads[0]
    assert load.link == found.links[0].link
    assert load.time == near(1 * MS, 3 * MS, 11 * MS)
    assert load.rate == near(1e9, 1e9, 0)
    assert load.transfers.tolist() == [1, 2, 0]
    assert found.links[0].bytes == pytest.approx(10 * MB)


@pytest.mark.parametrize("folding", [True, False])
def test_who_is_on_a_link_and_how_many_at_once(folding):
    """Two rings and a message, 4 ranks in a row of cables: the ring of all four is one transfer, not two phases."""
    ring = collective(0, "all_reduce", "all", 8 * MB)
    program = [ring, collective(1, "all_gather", "half", 4 * MB, stream="side")]
    groups = {"all": Group(axes=["a", "b"]), "half": Group(axes=["b"])}
    mesh = build({"mesh": {"kind": "full_mesh"}}, 4)
    found = replay(job({"a": 2, "b": 2}, program, groups=groups), mesh, folding=folding, algorithms="ring")
    load = next(load for load in found.link_loads if load.transfers.max() == 2)
    assert load.transfers.tolist() == [2, 1, 0]
    assert load.group_bytes == {"all": pytest.approx(12 * MB), "half": pytest.approx(2 * MB)}


def test_a_batch_with_two_messages_to_one_peer_waits_for_the_receiver(tmp_path):
    """Both sends are posted at once; the receiver comes at 5 ms, and the two of 2 MB share the link: 4 ms."""
    first = [send(0, 1, 2 * MB, batch=1), send(1, 1, 2 * MB, batch=1)]
    second = [compute(0, 5 * MS), recv(1, 0, 2 * MB, batch=1, deps=[0]), recv(2, 0, 2 * MB, batch=1)]
    found = replay(job({"r": 2}, first, second), star(tmp_path, 2))
    assert spans(found, 0)[0] == near(0, 5 * MS, 9 * MS)
    assert spans(found, 0)[1] == near(0, 5 * MS, 9 * MS)


def test_memory_that_comes_or_goes_holds_nothing(tmp_path):
    """What ran before it does: the second kernel is held by the first, not by the alloc between them."""
    memory = Op(id=1, kind="alloc", storage=5, bytes=64, category="activation")
    found = replay(job({"dp": 1}, [compute(0, 1.0), memory, compute(2, 1.0)]), star(tmp_path, 1))
    (line,) = found.timeline
    assert dict(zip(line.op.tolist(), line.held_by.tolist(), strict=True))[2] == 0
