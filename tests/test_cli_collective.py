"""``emu collective``: results as JSON, a table, a picture; wrong input is one line and exit code 2."""

from __future__ import annotations

import json

import numpy as np
import pytest

from emulator.errors import InputError
from emulator.network.measure import measure
from emulator.topology.load import load


def test_json_holds_a_row_per_size_and_algorithm(emu):
    code, out, _ = emu("collective", "all_reduce", "--ranks", "16", "--sweep", "1MiB:8MiB", "--json", "-")
    assert code == 0
    document = json.loads(out)
    assert (document["collective"], document["ranks"], document["topology"]) == ("all_reduce", 16, "fattree")
    assert sorted({row["bytes"] for row in document["results"]}) == [2.0**20 * f for f in (1, 2, 4, 8)]
    assert sum(row["chosen"] for row in document["results"]) == 4
    for row in document["results"]:
        assert row["algbw_bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"])
        assert row["busbw_bytes_per_second"] == pytest.approx(row["algbw_bytes_per_second"] * 2 * 15 / 16)


def test_names_of_others_are_understood(emu):
    for kind, algorithm in (("AllReduce", "double-binary-tree"), ("all-gather", "ring/LL128"), ("alltoall", "two-hop")):
        code, out, _ = emu("collective", kind, "--ranks", "16", "--algo", algorithm, "--json", "-")
        assert code == 0
        assert len(json.loads(out)["results"]) == 1


def test_the_table_marks_the_choice(emu):
    code, out, _ = emu(
        "collective", "all_to_all", "--ranks", "8", "--topo", "torus", "--size", "1 MB", "--width", "100"
    )
    assert code == 0
    assert "direct *" in out
    assert "1,000,000" in out


@pytest.mark.parametrize(
    "size", [("all_gather", "--size", "0"), ("barrier", "--size", "1 GB"), ("barrier", "--sweep", "1:8")]
)
def test_without_bytes_there_is_a_time_and_no_bandwidth(emu, size):
    code, out, _ = emu("collective", *size, "--topo", "torus", "--ranks", "8", "--json", "-")
    assert code == 0
    rows = json.loads(out)["results"]
    assert {(row["bytes"], row["algbw_bytes_per_second"], row["busbw_bytes_per_second"]) for row in rows} == {
        (0, None, None)
    }
    assert all(row["seconds"] > 0 for row in rows)
    assert "B/s" not in emu("collective", *size, "--topo", "torus", "--ranks", "8")[1]
    code, _, err = emu("collective", *size, "--topo", "torus", "--ranks", "8", "--plot", "x.png")
    assert code == 2 and "no bandwidth to draw" in err


def test_steps_and_phases_agree(emu):
    times = []
    for mode in ("steps", "phases"):
        arguments = ("--ranks", "8", "--topo", "torus", "--algo", "ring", "--mode", mode, "--json", "-")
        times.append(json.loads(emu("collective", "all_gather", *arguments)[1])["results"][0]["seconds"])
    assert times[0] == pytest.approx(times[1], rel=1e-3)


def test_a_file_and_a_picture(emu, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ("--ranks", "8", "--sweep", "1KiB:1MiB", "--plot", "busbw.png", "--json", "out.json")
    assert emu("collective", "all_reduce", *arguments)[0] == 0
    assert (tmp_path / "busbw.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out.json").read_text())["results"]


@pytest.mark.parametrize("mode", ["phases", "steps"])
@pytest.mark.parametrize("kind", ["send", "gather", "barrier", "all_reduce"])
def test_what_auto_takes_is_marked_in_both_modes_and_where_it_stands_alone(emu, kind, mode):
    arguments = ("--ranks", "2" if kind == "send" else "8", "--topo", "torus", "--mode", mode)
    _, out, _ = emu("collective", kind, *arguments, "--json", "-")
    assert [row["chosen"] for row in json.loads(out)["results"]].count(True) == 1
    assert " *" in emu("collective", kind, *arguments)[1]


def test_an_algorithm_that_is_named_is_not_weighed_against_others(emu):
    _, out, _ = emu("collective", "all_reduce", "--topo", "torus", "--algo", "ring", "--json", "-")
    assert [row["chosen"] for row in json.loads(out)["results"]] == [None]


WRONG = {
    "a group of one": (["all_reduce", "--ranks", "1"], "--ranks: a group of one moves nothing"),
    "part of a byte": (["all_reduce", "--size", "1.5"], "--size: '1.5' is not a whole number of bytes"),
    "no protocol": (["all_reduce", "--algo", "ring/"], "--algo: 'ring/' names no protocol"),
    "copies of another algorithm": (["all_to_all", "--copies", "2"], "--copies: only two_hop"),
    "more copies than members": (
        ["all_to_all", "--ranks", "16", "--algo", "two_hop", "--copies", "100"],
        "--copies: 100 copies: a server has 8",
    ),
    "collective": (["all_dance"], "all_dance"),
    "algorithm": (["all_reduce", "--algo", "magic"], "magic"),
    "algorithm of another collective": (["all_gather", "--algo", "pairwise"], "pairwise"),
    "switches that are not there": (["all_reduce", "--topo", "torus", "--algo", "nvls"], "nvls"),
    "protocol": (["all_reduce", "--algo", "ring/XX"], "emu: --algo: ring has no protocol 'XX'"),
    "no servers": (["all_reduce", "--algo", "hierarchical"], "hierarchical"),
    "mode": (["all_reduce", "--mode", "fast"], "emu: --mode: unknown mode 'fast'"),
    "size": (["all_reduce", "--size", "1G"], "1G"),
    "size beyond any": (["all_reduce", "--size", "1e30"], "--size: a size beyond any machine"),
    "sweep from nothing": (["all_reduce", "--sweep", "1e-300:1"], "not a whole number of bytes"),
    "bandwidth of nothing": (["all_reduce", "--set", "leaf.bandwidth=1e-300"], "levels.leaf.bandwidth"),
    "oversubscription without end": (["all_reduce", "--set", "spine.oversubscription=inf"], "levels.spine.oversub"),
    "sweep": (["all_reduce", "--sweep", "1MiB"], "A:B"),
    "falling sweep": (["all_reduce", "--sweep", "2MiB:1MiB"], "rise"),
    "root": (["broadcast", "--root", "8"], "--root: 8 is not a member"),
    "ranks": (["all_reduce", "--topo", "fiber", "--ranks", "1000"], "1,000"),
    "send of three": (["send", "--ranks", "3"], "--ranks: a send has two members"),
    "folder": (["all_reduce", "--json", "missing/out.json"], "missing"),
    "picture": (["all_reduce", "--plot", "picture.docx"], "docx"),
    "copies": (["all_to_all", "--ranks", "16", "--algo", "two_hop", "--copies", "0"], "--copies: 0 copies"),
    "copies without end": (["all_to_all", "--ranks", "16", "--algo", "two_hop", "--copies", "inf"], "--copies: inf"),
    "steps in the switch": (["all_reduce", "--algo", "nvls", "--mode", "steps"], "nvls"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_one_line(emu, tmp_path, what):
    arguments, told = WRONG[what]
    code, out, err = emu("collective", *arguments)
    assert (code, out) == (2, "")
    assert told in err.splitlines()[0]
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_the_placement_is_named_as_emu_run_names_it(emu):
    where = ("collective", "all_reduce", "--ranks", "8", "--topo", "fattree", "--set", "accelerators=16")
    code, out, _ = emu(*where, "--place", "random", "--seed", "3", "--json", "-")
    assert code == 0
    assert json.loads(out) != json.loads(emu(*where, "--json", "-")[1])
    assert emu(*where, "--placement", "random")[0] == 2


def test_a_link_without_bandwidth_is_told_not_timed():
    fabric = load("fattree", ranks=8)
    with pytest.raises(InputError, match="all_gather never ends: a link between its members has no bandwidth"):
        measure(fabric.with_capacity(np.arange(fabric.links), 0.0), range(8), "all_gather", [1e6])


@pytest.mark.parametrize(("knob", "reason"), [
    (["--set", "seed=-5"], "seed=-5 changed nothing"),
    (["--set", "core.bandwidth=1e12"], "core.bandwidth changed nothing: 16 accelerators need no core"),
    (["--set", "leaf.latency=1ms", "--algo", "ring"], "leaf.latency=1ms changed nothing: the collectives' latencies"),
    (["--set", "leaf.latency=1ms"], "leaf.latency=1ms counts for sends, exchanges and what else"),
    (["--seed", "5"], "--seed 5 changed nothing"),
    (["--root", "3"], "--root 3 changed nothing: all_reduce has no root"),
])  # fmt: skip
def test_a_knob_that_changed_nothing_is_said(emu, knob, reason):
    command = ("collective", "all_reduce", "--ranks", "16", *knob)
    _, out, _ = emu(*command, "--json", "-")
    assert [text for text in json.loads(out)["warnings"] if reason in text]
    _, out, _ = emu(*command, "--width", "200")
    assert "1 warning" in out and reason in out
