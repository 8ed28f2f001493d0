"""`emu run` with its options, as a user types them."""

from __future__ import annotations

import json
import sys

import pytest

from emulator.cli import main
from emulator.trace import io
from tests.jobs import collective, compute, job, wait


@pytest.fixture
def emu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trace = job({"dp": 16}, [compute(0, 1e-3), collective(1, "all_reduce", "dp", 10**7, deps=[0]), wait(2, 1)])
    io.write(trace, tmp_path / "t.json")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["emu", "run", "--trace", "t.json", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out = capsys.readouterr()
        return left.value.code, out.out, out.err

    return run


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
