"""A strategy against one process: what is proved, what is refused, and how processes end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import verify_breaks as breaks  # noqa: E402

from emulator.errors import InputError  # noqa: E402
from emulator.verify.strategy import verify_strategy  # noqa: E402
from emulator.verify.tolerance import tolerance  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

OWN = str(Path(__file__).with_name("verify_workload.py"))
TESTS = Path(__file__).parent
LLAMA = ("--model", "tiny", "--layers", "2")


def errors(report):
    assert [f for c in report.checks for f in c.findings] == []
    assert report.proved
    return {c.name: c.largest_error for c in report.checks}


@pytest.mark.parametrize(("kind", "ranks"), [("data", 3), ("experts", 2), ("ring", 2), ("pipeline", 2)])
def test_written_by_hand(kind, ranks):
    found = errors(verify_strategy(OWN, ["--kind", kind, "--ranks", str(ranks)]))
    assert found["losses"] < 1e-14
    assert found["parameters"] < 1e-12


STRATEGIES = {
    "fsdp": ("--fsdp", "2"),
    "ddp": ("--dp", "2"),
    "fsdp1": ("--fsdp", "2", "--fsdp-version", "1"),
    "tp-sp": ("--tp", "2"),
    "cp": ("--cp", "2"),
    "1f1b": ("--pp", "2", "--schedule", "1F1B", "--microbatches", "2"),
}
MORE = {
    "zero1": ("--dp", "4", "--zero", "1"),
    "zero2": ("--fsdp", "4", "--zero", "2"),
    "fsdp4": ("--fsdp", "4"),
    "fsdp1-zero2": ("--fsdp", "4", "--fsdp-version", "1", "--zero", "2"),
    "prefetch": ("--fsdp", "4", "--prefetch", "2"),
    "hsdp": ("--dp", "2", "--fsdp", "2"),
    "accumulated": ("--fsdp", "2", "--microbatches", "2"),
    "recompute": ("--fsdp", "2", "--recompute", "full"),
    "selective": ("--fsdp", "2", "--recompute", "selective"),
    "tp": ("--tp", "2", "--no-sp"),
    "cp4": ("--cp", "4"),
    "fsdp-tp": ("--fsdp", "2", "--tp", "2"),
    "cp-fsdp-tp": ("--cp", "2", "--fsdp", "2", "--tp", "2"),
    "pp-fsdp-tp": ("--pp", "2", "--fsdp", "2", "--tp", "2", "--schedule", "Interleaved1F1B", "--layers", "4"),
} | {
    schedule.lower(): ("--pp", "2", "--schedule", schedule, "--microbatches", "4", "--layers", "4")
    for schedule in ("GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
def test_llama(name):
    """fp64, three AdamW steps: a loss to 1e-14, every parameter to 1e-12."""
    found = errors(verify_strategy("workloads/llama.py", [*LLAMA, *STRATEGIES[name]]))
    assert found["losses"] < 1e-14
    assert found["parameters"] < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_llama_more(name):
    found = errors(verify_strategy("workloads/llama.py", [*LLAMA, *MORE[name]]))
    assert found["losses"] < 1e-14
    assert found["parameters"] < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_precisions_against_their_own_reference(dtype):
    report = verify_strategy("workloads/llama.py", [*LLAMA, "--fsdp", "2", "--dtype", dtype], steps=1)
    assert errors(report)["gradients"] > 0
    assert report.facts["dtype"] == dtype


def test_tolerance_says_where_it_comes_from():
    wide, half = (tolerance(d, longest_sum=100, matrices=4, learning_rate=1e-3) for d in ("float64", "bfloat16"))
    assert wide.relative == pytest.approx(32 * 2.0**-52 * 20)
    assert wide.moved == pytest.approx(wide.relative)  # lr / 1e-3
    assert half.relative == pytest.approx(8 * 2.0**-7 * 2)
    assert "eps(float64) sqrt(100 terms x 4 matrices)" in wide.text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--fsdp", "3"), "do not divide by 3"),
        (("--model", "70b", "--fsdp", "2"), r"1 processes need about \d+\.\d GB"),
        (("--frobnicate",), "unrecognized arguments"),
    ],
)
def test_refused_before_any_process_starts(arguments, reason):
    with pytest.raises(InputError, match=reason):
        verify_strategy("workloads/llama.py", arguments)


def test_a_script_that_is_no_workload(tmp_path):
    (tmp_path / "script.py").write_text("print('training')\n")
    with pytest.raises(InputError, match="lacks one of add_arguments"):
        verify_strategy(str(tmp_path / "script.py"))


# ---- how processes end


def children():
    """Processes forked by the fork server of this one."""
    server = forkserver._forkserver._forkserver_pid
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == server:
            found.append(stat.parent.name)
    return found


@pytest.mark.parametrize(
    ("prepare", "limit", "reason"),
    [
        (breaks.fail, 60, r"rank 1 failed: ZeroDivisionError: rank one is broken \(verify_breaks.py line \d+\)"),
        (breaks.die, 60, r"rank 1 was ended by signal SIGKILL"),
        (breaks.hang, 6, r"not finished after 6 s .*rank 1 in hang \(verify_breaks.py line \d+\)"),
    ],
    ids=["raises", "killed", "hangs"],
)
def test_a_failing_rank_ends_all_and_is_named(prepare, limit, reason):
    began = time.monotonic()
    with pytest.raises(InputError, match=reason):
        verify_strategy(OWN, ["--ranks", "3"], prepare=prepare, time_limit=limit)
    assert time.monotonic() - began < limit + 20
    assert children() == []


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
import verify_breaks
from emulator.verify.strategy import verify_strategy
if __name__ == "__main__":
    verify_strategy(sys.argv[2], ["--ranks", "2"], prepare=verify_breaks.hang_and_tell, time_limit=100)
"""


def test_ranks_end_with_their_parent(tmp_path, monkeypatch):
    (tmp_path / "parent.py").write_text(PARENT)
    monkeypatch.setenv("VERIFY_BREAKS_FOLDER", str(tmp_path))
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(TESTS), OWN])
    try:
        told = [tmp_path / "pid.0", tmp_path / "pid.1"]
        wait_for(lambda: all(path.exists() and path.read_text() for path in told), 60)
        pids = [int(path.read_text()) for path in told]
        assert all(alive(pid) for pid in pids)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), 20)


def wait_for(what, seconds):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def alive(pid):
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- the command


def emu(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "emulator", "verify", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_exit_codes_and_json():
    proved = emu(OWN, "--kind", "data", "--ranks", "2", "--steps", "1", "--json", "-")
    assert (proved.returncode, proved.stderr) == (0, "")
    document = json.loads(proved.stdout)
    assert (document["schema"], document["proved"]) == ("emu-verify/1", True)
    wrong = emu(OWN, "--kind", "data", "--ranks", "2", "--steps", "1", "--break", "same data on two ranks")
    assert wrong.returncode == 1
    assert "DISPROVED" in wrong.stdout
    assert wrong.stderr.startswith("emu: verify_workload.py")
    assert "3 of 3 checks failed" in wrong.stderr
    impossible = emu("--collective", "all_reduce", "--ranks", "2000")
    assert (impossible.returncode, impossible.stdout) == (2, "")
    assert impossible.stderr == "emu: --ranks: 1 to 64 processes, not 2000\n"
