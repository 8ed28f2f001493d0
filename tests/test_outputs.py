"""No command writes over what it reads, nor one output over another; an ending that lies is refused before any work."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from emulator.trace import io
from tests.jobs import collective, compute, job, wait

NET = {
    "nodes": [{"id": "s", "kind": "switch"}, *({"id": i, "kind": "accel"} for i in range(4))],
    "links": [{"source": i, "target": "s", "bandwidth": "1 GB/s"} for i in range(4)],
}


@pytest.fixture
def emu(emu, tmp_path):
    """Runs a command in a folder with a trace, its result and a topology; gives (exit code, stdout, stderr)."""
    io.write(job({"dp": 4}, [compute(0, 1e-3), collective(1, "all_gather", "dp", 64), wait(2, 1)]), "t.json")
    (tmp_path / "net.json").write_text(json.dumps(NET))
    assert emu("run", "-t", "t.json", "--json", "r.json")[0] == 0
    shutil.copy("r.json", "r")  # a name without an ending
    os.symlink("r", "link.svg")
    os.symlink("t.json", "again.json")
    (tmp_path / "order.json").write_text("[0, 1, 2, 3]")
    return emu


OVERWRITES = {
    "a result by its picture": (["view", "r.json", "--svg", "r.json"], "would overwrite the result"),
    "a result through a link": (["view", "r", "--svg", "link.svg"], "would overwrite the result"),
    "a result by an export": (["export", "r.json", "./r.json"], "would overwrite the result"),
    "a trace by its result": (["run", "-t", "t.json", "--json", "t.json"], "would overwrite the trace"),
    "a trace through a link": (["run", "-t", "t.json", "--perfetto", "again.json"], "would overwrite the trace"),
    "a topology by a result": (["run", "-t", "t.json", "--topo", "net.json", "--json", "net.json"], "the topology"),
    "a placement by a result": (["run", "-t", "t.json", "--place", "order.json", "--json", "order.json"], "placement"),
    "a topology by one of several results": (
        ["run", "-t", "t.json", "--topo", "net.json", "--topo", "torus", "--json", "."], "the topology net.json",
    ),
    "a topology by itself": (["topo", "convert", "net.json", "net.json"], "would overwrite the topology"),
    "a topology by its times": (
        ["collective", "all_reduce", "--ranks", "4", "--topo", "net.json", "--json", "net.json"], "the topology",
    ),
    "a trace by its proof": (["verify", "t.json", "--json", "t.json"], "would overwrite the trace"),
    "one output by another": (
        ["run", "-t", "t.json", "--json", "a.json", "--perfetto", "./a.json"], "--json and --perfetto are the same",
    ),
    "two outputs of one name": (
        ["collective", "all_reduce", "--json", "same.svg", "--plot", "same.svg"], "--json and --plot are the same",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OVERWRITES)
def test_nothing_is_overwritten_by_what_is_made_from_it(emu, tmp_path, case):
    arguments, reason = OVERWRITES[case]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = emu(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("emu: ")
    assert reason in err.splitlines()[0]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.torch
def test_captures_are_not_overwritten_by_their_trace(emu, tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "0.capture").write_bytes(b"precious")
    os.symlink("ranks/0.capture", "merged.json")
    code, _, err = emu("trace", "merge", "ranks", "-o", "merged.json")
    assert (code, "would overwrite the capture 0.capture" in err) == (2, True)
    assert (tmp_path / "ranks" / "0.capture").read_bytes() == b"precious"


ENDINGS = {
    "SVG in a .png": (["view", "r.json", "--svg", "x.png"], "x.png: --svg: the name has to end in .svg"),
    "PNG in a .svg": (["view", "r.json", "--png", "x.svg"], "x.svg: --png: the name has to end in .png"),
    "drawing in a .pdf": (["topo", "show", "net.json", "--png", "x.pdf"], "has to end in .png"),
    "JSON in a .zst": (["run", "-t", "t.json", "--json", "x.json.zst"], "has to end in .json or .json.gz"),
    "Perfetto in a .txt": (["run", "-t", "t.json", "--perfetto", "x.txt"], "has to end in .json or .json.gz"),
    "proof in a .yaml": (["verify", "t.json", "--json", "x.yaml"], "has to end in .json or .json.gz"),
    "times in a .csv": (["collective", "all_reduce", "--json", "x.csv"], "has to end in .json or .json.gz"),
    "plot in a .docx": (["collective", "all_reduce", "--plot", "x.docx"], "has to end in .png, .svg or .pdf"),
    "graph in a .yaml": (["topo", "convert", "net.json", "x.yaml"], "has to end in .json"),
    "recording in a .pt": (["record", "-o", "x.pt", "llama.py"], "has to end in .json, .json.gz or .json.zst"),
    "table in nothing": (["export", "r.json", "x"], "has to end in .json, .json.gz, .csv"),
    "a picture to print": (["view", "r.json", "--svg", "-"], "cannot be printed"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_an_ending_that_lies_is_refused(emu, tmp_path, case):
    arguments, reason = ENDINGS[case]
    before = sorted(tmp_path.iterdir())
    code, out, err = emu(*arguments)
    assert (code, out) == (2, "")
    assert reason in err.splitlines()[0]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["result", "/dev/null", "X.JSON"])
def test_a_name_that_promises_nothing_else_is_taken(emu, name):
    code, _, err = emu("run", "-t", "t.json", "--json", name)
    assert (code, err) == (0, "")


def test_a_gz_is_compressed_whatever_the_command(emu, tmp_path):
    for arguments in (["run", "-t", "t.json"], ["collective", "all_reduce", "--ranks", "4"]):
        assert emu(*arguments, "--json", "x.json.GZ")[0] == 0
        assert (tmp_path / "x.json.GZ").read_bytes().startswith(b"\x1f\x8b")
