"""`emu run` with its options, as a user types them."""

from __future__ import annotations

import json
from functools import partial

import pytest

from emulator.trace import io
from tests.jobs import collective, compute, job, wait


@pytest.fixture
def emu(emu, tmp_path):
    """Runs `emu run` on a trace of 16 ranks."""
    trace = job({"dp": 16}, [compute(0, 1e-3), collective(1, "all_reduce", "dp", 10**7, deps=[0]), wait(2, 1)])
    io.write(trace, tmp_path / "t.json")
    return partial(emu, "run", "--trace", "t.json")


def step(emu, *arguments):
    code, out, err = emu("--json", "-", *arguments)
    assert (code, err) == (0, "")
    return json.loads(out)["step_seconds"]


def test_options_change_the_step_as_they_should(emu):
    plain = step(emu)
    assert step(emu, "--straggler", "3:4") == pytest.approx(plain + 3e-3)
    assert step(emu, "--degrade", "gpu0-leaf0:0.1", "--algo", "ring") > step(emu, "--algo", "ring")
    assert step(emu, "--no-fold") == pytest.approx(plain, rel=1e-9)
    torus = ("--topo", "torus", "--algo", "ring")
    assert step(emu, "--place", "random", "--seed", "3", *torus) > step(emu, *torus)


def test_a_knob_that_changed_nothing_is_said(emu):
    _, out, _ = emu("--place", "dp", "--width", "200")
    assert "placement changed nothing" in out
    _, out, _ = emu("--degrade", "gpu0-leaf0:0.5@90ms-99ms", "--width", "200")
    assert "was over before" in out


def warnings(emu, *arguments):
    code, out, err = emu("--json", "-", *arguments)
    assert (code, err) == (0, "")
    return json.loads(out)["warnings"]


# The job: 16 ranks on two nodes, an all-reduce of them all; rank r talks over leaf r % 8 and never through a spine.
IDLE = {
    "latency that the tuning has": (["--set", "leaf.latency=1ms"], "the collectives' latencies come from the tuning"),
    "latency of links without traffic": (["--set", "spine.latency=1ms"], "no message of this job crosses leaf-spine"),
    "bandwidth of links without traffic": (["--set", "spine.bandwidth=40GB/s"], "no message of this job crosses"),
    "degraded link without traffic": (["--degrade", "leaf0-spine0:0.5"], "no message of this job crosses the link"),
    "degraded by nothing": (["--degrade", "gpu0-leaf0:1"], "at a factor of 1 a link has its whole capacity"),
    "straggler that is none": (["--straggler", "5:1"], "at a factor of 1 a rank computes as fast as ever"),
    "seed of nothing": (["--seed", "5"], "neither placement nor routing is drawn"),
    "algorithm of another collective": (["--algo", "broadcast=ring"], "does no broadcast among several ranks"),
    "share of links without traffic": (["--chip-share", "leaf-spine=0.5"], "no message of this job crosses leaf-spine"),
    "share that meets no compute": (["--chip-share", "NIC=0.5"], "nothing computes while communication is under way"),
    "share that is the device's": (["--chip-share", "NIC=0"], "has without it"),
    "share below another": (["--chip-share", "NIC=0.5,NVLink=0.2"], "a larger share by other links"),
}


@pytest.mark.parametrize("case", IDLE)
def test_an_idle_knob_is_said_and_truly_idle(emu, case):
    (option, value), reason = IDLE[case]
    said = [text for text in warnings(emu, option, value) if reason in text]
    assert len(said) == 1
    assert "changed nothing" in said[0]
    assert step(emu, option, value) == step(emu)


def test_a_knob_that_counts_is_not_called_idle(emu):
    for knob in (
        ["--set", "leaf.latency=1ms", "--set", "tuning=none"], ["--set", "leaf.bandwidth=10GB/s"],
        ["--degrade", "gpu0-leaf0:0.5"], ["--straggler", "5:2"], ["--seed", "5", "--place", "random"],
        ["--seed", "5", "--set", "routing=ecmp"], ["--algo", "all_reduce=ring"],
    ):  # fmt: skip
        assert not [text for text in warnings(emu, *knob) if "changed nothing" in text]


def test_latencies_of_links_count_for_messages_that_no_tuning_knows(emu, tmp_path):
    io.write(job({"dp": 16}, [collective(0, "all_to_all", "dp", 10**6), wait(1, 0)]), tmp_path / "t.json")
    late = ("--set", "leaf.latency=1ms")
    assert step(emu, *late) > step(emu)
    assert not [text for text in warnings(emu, *late) if text.startswith("leaf.latency")]
    both = [collective(0, "all_to_all", "dp", 10**6), collective(1, "all_reduce", "dp", 10**6), wait(2, 1)]
    io.write(job({"dp": 16}, both), tmp_path / "t.json")
    assert [text for text in warnings(emu, *late) if "counts for sends, exchanges and" in text]


def test_the_seed_is_that_of_hashed_routing(emu):
    torus = ("--topo", "slingshot", "--device", "h100", "--set", "routing=ecmp")
    assert step(emu, "--seed", "5", *torus) == step(emu, "--set", "seed=5", *torus)


def test_several_topologies_are_compared_and_kept(emu, tmp_path):
    (tmp_path / "out").mkdir()
    code, out, err = emu("--topo", "fattree", "--topo", "fiber", "--jobs", "2", "--json", "out", "--width", "120")
    assert (code, err) == (0, "")
    assert "fattree" in out
    assert "fiber" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fattree.json", "fiber.json"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--straggler", "99:2"], "rank 99"),
        (["--straggler", "fast"], "RANK:FACTOR"),
        (["--straggler", "1:2", "--straggler", "1:3"], "two factors for rank 1: 2 and 3"),
        (["--straggler", "1:1e300"], "--straggler: '1:1e300': the factor is beyond any machine"),
        (["--degrade", "gpu0-leaf0:1e-300"], "--degrade: 'gpu0-leaf0:1e-300': the factor is beyond any machine"),
        (["--degrade", "gpu0-gpu1:0.5"], "--degrade: gpu0-gpu1: no link joins gpu0 and gpu1"),
        (["--algo", "all_gather=ring/XX"], "--algo: ring/XX: no protocol 'XX'"),
        (["--degrade", "gpu0-moon:0.5"], "moon"),
        (["--degrade", "gpu0-leaf0:2x"], "factor"),
        (["--place", "sideways"], "sideways"),
        (["--topo", "fattree", "--topo", "fattree"], "twice"),
        (["--topo", "fattree", "--topo", "fiber", "--json", "r.json"], "folder"),
        (["--jobs", "0"], "--jobs"),
        (["--straggler", "5:1.5", "--straggler", "5:2"], "two factors for rank 5: 1.5 and 2"),
        (["--chip-share", "NIC=0.1,nic=0.2"], "two shares for NIC"),
        (["--algo", "=ring"], "unknown collective ''"),
        (["--algo", "ring/"], "unknown algorithm 'ring/'"),
        (["--algo", "ring,"], "unknown algorithm ''"),
        (["--algo", "ring,tree"], "two algorithms for all collectives"),
        (["--algo", "all_reduce=ring,AllReduce=tree"], "two algorithms for all_reduce"),
    ],
)
def test_wrong_options_are_one_line(emu, arguments, reason):
    code, out, err = emu(*arguments)
    assert (code, out) == (2, "")
    assert reason in err.splitlines()[0]
    assert len(err.splitlines()) <= 2


def test_a_degraded_link_that_still_cannot_be_filled_is_said(emu, tmp_path):
    io.write(job({"dp": 16}, [collective(0, "all_to_all", "dp", 10**6), wait(1, 0)]), tmp_path / "t.json")
    wide = ("--set", "spine.oversubscription=0.5", "--set", "leaf.rails=4")
    degraded = (*wide, "--degrade", "leaf0-spine0:0.6")
    assert [text for text in warnings(emu, *degraded) if "cannot fill what is left of it" in text]
    assert step(emu, *degraded) == pytest.approx(step(emu, *wide), rel=1e-12)
    assert step(emu, *wide, "--degrade", "leaf0-spine0:0.1") > step(emu, *wide)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("json", "reason"), [("v.json", "t.json: holds no tensors to execute it with"), ("-", "--verify: its findings")]
)
def test_what_cannot_be_verified_is_not_replayed(emu, tmp_path, json, reason):
    pytest.importorskip("torch")
    code, out, err = emu("--verify", "--json", json)
    assert (code, out) == (2, "")
    assert err.startswith(f"emu: {reason}")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
