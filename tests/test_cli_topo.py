"""`emu topo` as people type it: what it prints, what it writes, and its exit codes."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from emulator.topology.load import load

FLAT = "name: flat\ndescription: one switch\nlevels:\n  node: {kind: switch, size: 4, bandwidth: 1 GB/s}\n"


@pytest.fixture
def emu(emu, monkeypatch):
    """Runs `emu topo ...` at a width of 100."""
    monkeypatch.setenv("COLUMNS", "100")
    return partial(emu, "topo")


def test_list_has_a_line_for_every_preset(emu):
    code, out, err = emu("list")
    assert (code, err) == (0, "")
    assert all(len(line.split(maxsplit=1)) == 2 for line in out.splitlines())
    assert {"fattree", "torus", "fiber", "dgx-h100-superpod", "tpu-8t-virgo", "slingshot"} <= {
        line.split()[0] for line in out.splitlines()
    }


def test_show_gives_figures_power_and_a_drawing(emu):
    code, out, _ = emu("show", "fattree", "--ranks", "16")
    assert code == 0
    for text in ("bisection", "oversubscription  spine: 1:1", "20.4 kW", "Sources", "leaf3      o       o"):
        assert text in out
    assert "Drawing" not in emu("show", "fattree", "--ranks", "512")[1]


def test_a_torus_is_drawn_as_a_grid(emu):
    grid = emu("show", "torus", "--ranks", "8", "--set", "ici.shape=1x2x4", "--set", "ici.cube=1")[1]
    assert "0---1---2---3" in grid and "4---5---6---7" in grid
    assert "~0---1---2---3~" in grid  # the axis of 4 closes


def test_show_takes_files_of_other_tools_at_their_own_size(emu, tmp_path):
    (tmp_path / "net.yml").write_text("topology: [Ring]\nnpus_count: [6]\nbandwidth: [50.0]\nlatency: [500.0]\n")
    code, out, _ = emu("show", "net.yml")
    assert code == 0 and "6 npus" in out


def test_a_png_is_drawn(emu, tmp_path):
    pytest.importorskip("matplotlib")
    for spec, file in (("fattree", "a.png"), ("torus", "b.png"), ("mi300x-8", "c.png")):
        assert emu("show", spec, "--ranks", "8", "--png", file)[0] == 0
        assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")
    code, _, err = emu("show", "fattree", "--ranks", "4096", "--png", "large.png")
    assert code == 2 and "too many to draw" in err and not (tmp_path / "large.png").exists()
    assert emu("show", "fattree", "--png", "no/where.png")[0] == 2


def test_check_says_no_with_1_and_cannot_with_2(emu, tmp_path):
    (tmp_path / "flat.yaml").write_text(FLAT)
    code, out, _ = emu("check", "flat.yaml")
    assert code == 0 and out.splitlines()[-1] == "flat.yaml: usable"
    (tmp_path / "odd.yaml").write_text(FLAT + "device: warp9\n")
    code, out, err = emu("check", "odd.yaml")
    assert code == 1 and "no such device" in out and len(err.splitlines()) == 1
    (tmp_path / "bad.yaml").write_text(FLAT.replace("1 GB/s", "0"))
    code, out, err = emu("check", "bad.yaml")
    assert code == 2 and out == "" and err.startswith("emu: bad.yaml: levels.node.bandwidth: ")


def test_convert_writes_a_graph_that_is_the_same_network(emu, tmp_path):
    code, out, err = emu("convert", "fattree", "net.json", "--ranks", "16")
    assert (code, err) == (0, "") and "27 nodes, 80 directed links" in out
    document = json.loads((tmp_path / "net.json").read_text())
    assert len(document["nodes"]) == 27 and len(document["links"]) == 80
    assert "4 links between the farthest accelerators" in emu("show", "net.json")[1]
    assert json.loads(emu("convert", "fattree", "-", "--ranks", "16")[1]) == document


def test_convert_says_what_a_graph_cannot_keep(emu):
    code, _, err = emu("convert", "torus", "net.json", "--ranks", "8")
    assert code == 0 and "dimension-order" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "moebius"], "no such topology"),
        (["show", "devices"], "holds devices"),
        (["show", "fattree", "--set", "leaf.colour=red"], "leaf.colour"),
        (["show", "fattree", "--ranks", "0"], "--ranks"),
        (["convert", "fattree", "no/where.json"], "does not exist"),
        (["convert", "fattree", "."], "folder"),
        (["convert", "fattree"], "OUT"),
    ],
)
def test_a_bad_command_line_is_told_in_one_line(emu, arguments, reason):
    code, out, err = emu(*arguments)
    assert code == 2 and out == ""
    assert reason in err.splitlines()[0] and len(err.splitlines()) <= 2


def test_a_png_needs_matplotlib_and_says_so(emu, monkeypatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = emu("show", "torus", "--ranks", "8", "--png", "a.png")
    assert code == 2 and "matplotlib" in err and not (tmp_path / "a.png").exists()


def test_without_a_job_a_small_fabric_is_looked_at_as_it_is(emu, tmp_path):
    (tmp_path / "net.yaml").write_text(
        "name: x\ndescription: x\nlevels:\n  leaf: {kind: tier, radix: 4, bandwidth: 50 GB/s}\n"
        "  spine: {kind: tier, radix: 8, bandwidth: 50 GB/s}\n"
    )
    code, out, err = emu("check", "net.yaml")
    assert (code, err) == (0, "") and "usable" in out
    assert "16 gpus" in emu("show", "net.yaml")[1]
    assert "holds 16 accelerators, the job needs 64" in emu("check", "net.yaml", "--ranks", "64")[2]


@pytest.mark.parametrize(("yes", "no"), [("yes", "no"), ("on", "Off"), ("true", "false"), ("1", "0")])
def test_flags_are_set_as_yaml_writes_them(yes, no):
    assert (
        load("fattree", ranks=1024, overrides={"bundled": yes}).nodes
        < load("fattree", ranks=1024, overrides={"bundled": no}).nodes
    )
    mixed = load("torus", ranks=64, overrides={"ici.wrap": f"{yes},{no},{yes}"})
    assert mixed.grid_closed == (True, False, True)


def test_a_flag_that_is_none_is_told_with_what_it_may_be(emu):
    code, _, err = emu("check", "fattree", "--set", "bundled=maybe")
    assert (code, "bundled: Expected `bool`" in err, "write yes or no" in err) == (2, True, True)
