"""Dependencies are complete: a recorded step, executed in random orders that respect nothing but them, leaves bitwise
the same parameters and optimizer state."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from emulator.capture.command import record_command
from emulator.verify.trace import verify_trace

pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]

STRATEGIES = {
    "ddp": ("llama.py", "--dp 2 --bucket-mb 0.05"),
    "tp-sp": ("llama.py", "--tp 2"),
    "interleaved": ("llama.py", "--pp 2 --schedule Interleaved1F1B --microbatches 4"),
    "zbv": ("llama.py", "--pp 2 --schedule ZBVZeroBubble --microbatches 4"),
    "ep": ("moe.py", "--ep 2"),
    "cp": ("llama.py", "--cp 2"),
}


GRID = "--pp 2 --fsdp 2 --tp 2 --microbatches 2"
COMBINED = {
    "pp-fsdp-tp": (8, "llama.py", GRID),
    "pp-fsdp-cp-tp": (16, "llama.py", f"{GRID} --cp 2"),
    "pp-fsdp-ep-tp": (16, "moe.py", f"{GRID} --ep 2"),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", COMBINED)
def test_in_more_dimensions_too(tmp_path: Path, name: str) -> None:
    ranks, workload, options = COMBINED[name]
    record_command(tmp_path / "t.json", f"workloads/{workload}", options.split(), nproc=ranks, with_state=True)
    report = verify_trace(str(tmp_path / "t.json"), seeds=(1,))
    assert report.proved
    assert any(check.subject.startswith("random order") for check in report.checks)


@pytest.mark.parametrize("name", STRATEGIES)
def test_any_order_that_the_dependencies_allow_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    workload, options = STRATEGIES[name]
    record_command(tmp_path / "t.json", f"workloads/{workload}", options.split(), nproc=2, with_state=True)
    report = verify_trace(str(tmp_path / "t.json"), seeds=(1,))
    assert report.proved
    assert any(check.subject.startswith("random order") for check in report.checks)
