"""Where the output goes: a reader that has had enough, a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EMU = [sys.executable, "-m", "emulator"]
LISTS = ["topo", "list"]
REPORTS = ["run", "--trace", "llama.json"]


@pytest.mark.parametrize("command", [LISTS, REPORTS], ids=["list", "report"])
def test_a_reader_that_leaves_is_no_error(command: list[str]) -> None:
    with subprocess.Popen([*EMU, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()  # before a line is written: as `| true` does
        assert (running.wait(timeout=60), running.stderr.read()) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux")
@pytest.mark.parametrize("command", [LISTS, REPORTS], ids=["list", "report"])
def test_a_full_disk_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*EMU, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "emu: cannot write the output: No space left on device\n")
