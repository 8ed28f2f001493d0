"""Ctrl-C in the middle of a long replay: over within a second, one line, nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from emulator.trace import io
from emulator.trace.schema import BlockUse, PerRank
from tests.jobs import collective, compute, job, wait


def long_job():
    """Sixteen ranks that differ, with host time so that nothing merges or repeats: seconds of work for the engine."""
    body = [
        compute(0, PerRank(["dp"], [1e-5 * (1 + i / 7) for i in range(16)]), host_seconds=1e-6),
        collective(1, "all_reduce", "dp", 4096, deps=[0]),
        wait(2, 1),
    ]
    return job({"dp": 16}, [BlockUse("b", 40_000)], blocks={"b": body})


def test_ctrl_c_ends_a_replay_and_leaves_nothing(tmp_path):
    io.write(long_job(), tmp_path / "t.json")
    running = subprocess.Popen(
        [sys.executable, "-m", "emulator", "run", "--trace", "t.json", "--no-fold", "--json", "r.json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell's background job ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    try:
        time.sleep(4)
        assert running.poll() is None, "the job was too short for this test"
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    finally:
        running.kill()
    assert running.returncode == 130
    assert (out, err) == ("", "emu: interrupted; nothing was written\n")
    assert time.monotonic() - began < 5  # one second on a quiet machine
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
