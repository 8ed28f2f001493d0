"""Recording real processes: what gloo ranks did equals the fake world, and recording changes nothing."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import capture_ranks  # noqa: E402

from emulator.capture.command import record_command  # noqa: E402
from emulator.capture.output import merge_folder  # noqa: E402
from emulator.capture.processes import run_ranks  # noqa: E402
from emulator.capture.workload import find  # noqa: E402
from emulator.errors import InputError  # noqa: E402
from emulator.trace import check  # noqa: E402
from emulator.trace.expand import rows, templates  # noqa: E402
from emulator.trace.schema import Op, Trace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

WORKLOAD = "workloads/llama.py"
LAYERS = 4  # of the tiny model


def record(tmp_path: Path, name: str, *arguments: str, **how: object) -> Trace:
    path = tmp_path / name
    record_command(path, WORKLOAD, arguments, **how)  # type: ignore[arg-type]
    return check.load(path)


def executed(trace: Trace) -> list[Op]:
    """The ops of the only program as they run, blocks unrolled."""
    (_program,) = trace.programs
    known = templates(trace).ops
    return [known[template] for template in rows(trace, 0).template]


def collectives(trace: Trace) -> Counter[tuple[str, str]]:
    return Counter((op.collective, op.group) for op in executed(trace) if op.kind == "collective")


@pytest.mark.parametrize("layout", [("--fsdp", "4"), ("--fsdp", "2", "--tp", "2")], ids=["fsdp4", "fsdp2-tp2"])
def test_four_processes_did_what_the_fake_world_says(tmp_path: Path, layout: tuple[str, ...]) -> None:
    real = record(tmp_path, "real.json", *layout, nproc=4)
    fake = record(tmp_path, "fake.json", *layout, world=4)
    assert real.programs == fake.programs  # every op, stream, wait, dependency and storage
    assert (real.mesh, real.groups, real.ranks) == (fake.mesh, fake.groups, fake.ranks)
    assert real.ranks == [(4, 0)]
    assert (real.meta.source, fake.meta.source) == ("torch", "torch-fake")


def test_fsdp_gathers_and_reduces_what_the_formulas_say(tmp_path: Path) -> None:
    trace = record(tmp_path, "t.json", "--fsdp", "4", world=4)
    assert collectives(trace) == {("all_gather", "fsdp"): 2 * LAYERS + 1, ("reduce_scatter", "fsdp"): LAYERS + 1}
    ops = executed(trace)
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 96 + 2 * 32  # q and o, k and v, ffn, norms
    root = 2 * 128 * 32 + 32
    gathered = [op.bytes_out for op in ops if op.collective == "all_gather"]
    reduced = [op.bytes_in for op in ops if op.collective == "reduce_scatter"]
    assert sorted(gathered) == sorted([4 * layer] * (2 * LAYERS) + [4 * root])
    assert sorted(reduced) == sorted([4 * layer] * LAYERS + [4 * root])
    assert all(op.bytes_in * 4 == op.bytes_out for op in ops if op.collective == "all_gather")


def test_recording_changes_nothing_and_the_parallel_run_is_right(tmp_path: Path) -> None:
    arguments = ["--fsdp", "2", "--tp", "2", "--dtype", "float64"]
    run_ranks(capture_ranks.compare_training, (find(WORKLOAD), arguments), 4, tmp_path, source="test", time_limit=100)
    for rank in range(4):
        result = json.loads((tmp_path / f"result.{rank}").read_text())
        assert result["same_losses"]
        assert result["same_parameters"]  # bitwise
        assert result["loss_error"] < 1e-12  # fp64: only the order of sums differs
        assert result["parameter_error"] < 1e-11  # AdamW divides small gradients by their size


def test_the_first_failing_rank_ends_all_and_is_named(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        run_ranks(capture_ranks.fail, ("raise",), 3, tmp_path, source="job.py", time_limit=60)
    assert "rank 1 failed: ZeroDivisionError: rank one is broken" in str(caught.value)
    assert str(caught.value).startswith("job.py: ")
    assert time.monotonic() - start < 30


def test_a_job_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not finished after 3 s \(ranks 0, 1"):
        run_ranks(capture_ranks.fail, ("never",), 2, tmp_path, source="job.py", time_limit=3)


SCRIPT = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from emulator.capture.api import Recorder

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
model = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Recorder("ignored.json") as recorder:
    for step in range(3):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        recorder.step()
dist.destroy_process_group()
"""


def test_a_script_of_ones_own_is_recorded_and_merged(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    trace = record_command(tmp_path / "own.json", str(tmp_path / "script.py"), [], nproc=2)
    assert (trace.mesh.axes, trace.mesh.shape, trace.ranks) == (["data"], [2], [(2, 0)])
    assert collectives(trace) == {("all_gather", "data"): 1, ("reduce_scatter", "data"): 1}
    assert trace.meta.model == "FSDPLinear"
    assert trace.meta.params == 72
    assert "first_step" not in trace.meta.notes
    assert not list(check.faults(trace))
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "own.json"}


def test_ranks_can_leave_files_that_are_merged_later(tmp_path: Path) -> None:
    setting = f"import os\nos.environ['EMU_RECORD_DIR'] = {str(tmp_path / 'ranks')!r}\n"
    (tmp_path / "script.py").write_text(setting + SCRIPT)
    with pytest.raises(InputError, match="without recording anything"):  # into the trace, that is
        record_command(tmp_path / "own.json", str(tmp_path / "script.py"), [], nproc=2)
    trace = merge_folder(tmp_path / "ranks", tmp_path / "own.json")
    assert (trace.mesh.axes, trace.mesh.shape, trace.ranks) == (["data"], [2], [(2, 0)])
    assert (trace.meta.model, trace.meta.params) == ("FSDPLinear", 72)
    next((tmp_path / "ranks").iterdir()).unlink()
    with pytest.raises(InputError, match="of 2 are missing"):
        merge_folder(tmp_path / "ranks", tmp_path / "own.json")
    with pytest.raises(InputError, match="no captures"):
        merge_folder(tmp_path, tmp_path / "own.json")


def test_a_script_without_a_hook_says_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('training')\n")
    with pytest.raises(InputError) as caught:
        record_command(tmp_path / "t.json", str(tmp_path / "script.py"), [], nproc=1)
    assert "without recording anything" in str(caught.value)
    assert "emulator.record" in caught.value.remedy
    assert not (tmp_path / "t.json").exists()


@pytest.mark.timeout(120)
def test_state_is_enough_to_execute_the_step_again(tmp_path: Path) -> None:
    trace = record(tmp_path, "state.json", "--fsdp", "2", nproc=2, with_state=True)
    assert trace.exec is not None
    assert (tmp_path / "state.safetensors").stat().st_size + (tmp_path / "state.json").stat().st_size < 2_000_000
    (tmp_path / "again").mkdir()
    run_ranks(capture_ranks.replay, (tmp_path / "state.json",), 2, tmp_path / "again", source="test", time_limit=60)
    for rank in range(2):
        result = json.loads((tmp_path / "again" / f"result.{rank}").read_text())
        assert result["wrong"] == []  # parameters, optimizer state, everything that was there: bitwise
        assert result["changed"] > 100
