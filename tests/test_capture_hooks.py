"""Hooks go in and come out: nothing stays behind, recordings do not nest, and training is as it was."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from emulator.capture import accessors  # noqa: E402
from emulator.capture.api import Recorder, record  # noqa: E402
from emulator.capture.session import recording  # noqa: E402
from emulator.errors import InputError  # noqa: E402
from emulator.trace import check  # noqa: E402

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)
        self.proj = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.silu(self.proj(self.norm(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Job:
    """A model that trains by itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self) -> None:
        loss = nn.functional.mse_loss(self.model(torch.ones(4, 8)), torch.zeros(4, 8))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def patched_places() -> list[Any]:
    stream, event = accessors.cpu_stream_types()
    owner, name = accessors.sharding_propagator()
    hooks, optimizers = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    return [
        vars(stream)["wait_stream"], vars(stream)["wait_event"], vars(stream)["record_event"], vars(event)["record"],
        vars(event)["wait"], dist.Work.wait, "wait" in vars(dist.Work), torch.UntypedStorage.resize_,
        "resize_" in vars(torch.UntypedStorage), getattr(owner, name), len(hooks._global_forward_hooks),
        len(hooks._global_forward_pre_hooks), len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
        torch.utils._python_dispatch._len_torch_dispatch_stack(),
    ]  # fmt: skip


def test_hooks_are_in_while_recording_and_all_gone_after(tmp_path: Path) -> None:
    before = patched_places()
    job = Job()
    job.step()
    with record(tmp_path / "t.json"):
        job.step()
        during = patched_places()
    assert patched_places() == before
    assert sum(a != b for a, b in zip(before, during, strict=True)) >= 11


def test_an_error_inside_takes_the_hooks_out_and_writes_nothing(tmp_path: Path) -> None:
    before = patched_places()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), record(tmp_path / "t.json"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert patched_places() == before
    assert list(tmp_path.iterdir()) == []
    with recording():  # and the next recording may start
        pass


def test_recordings_do_not_nest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already running"), record(tmp_path / "a.json"), record(tmp_path / "b.json"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_training_with_recording_is_bitwise_the_same(tmp_path: Path) -> None:
    plain, recorded = Job(), Job()
    with Recorder(tmp_path / "t.json") as recorder:
        for _ in range(3):
            plain.step()
            recorded.step()
            recorder.step()
    assert all(map(torch.equal, plain.weights(), recorded.weights()))


def test_a_recorded_step_is_told_by_phase_module_and_layer(tmp_path: Path) -> None:
    job = Job()
    with Recorder(tmp_path / "t.json") as recorder:
        for _ in range(2):
            job.step()
            recorder.step()
    trace = check.load(tmp_path / "t.json")
    ops = [op for op in trace.programs[0].ops if op.kind == "compute"]
    gemms = [(op.phase, op.module, op.layer) for op in ops if op.op_class == "gemm"]
    down = [("backward", f"layers.{i}.proj", i) for i in (1, 1, 0, 0)]  # for each the weight's and the input's gradient
    assert gemms == [("forward", "layers.0.proj", 0), ("forward", "layers.1.proj", 1), *down]
    assert {op.op_class for op in ops if op.module.endswith("norm")} == {"norm"}
    assert {op.op_class for op in ops if op.phase == "optimizer"} == {"optimizer"}
    assert [op.op_class for op in ops if op.name.startswith("aten.mse_loss")] == ["loss", "loss"]
    assert [op.phase for op in ops] == sorted((op.phase for op in ops), key=["forward", "backward", "optimizer"].index)
    assert all(op.flops == 2 * 4 * 8 * 8 for op in ops if op.op_class == "gemm")
    assert trace.meta.resident == {"parameter": 4 * 144, "optimizer": 4 * (2 * 144 + 4)}
    assert (trace.meta.params, trace.meta.layers, trace.world_size) == (144, 2, 1)


def test_a_first_step_warns_and_a_later_one_does_not(tmp_path: Path) -> None:
    job = Job()
    with pytest.warns(UserWarning, match="first step"), record(tmp_path / "t.json"):
        job.step()
    assert check.load(tmp_path / "t.json").meta.notes["first_step"] == 1
    with warnings.catch_warnings(), record(tmp_path / "t.json"):
        warnings.simplefilter("error")
        job.step()
    assert "first_step" not in check.load(tmp_path / "t.json").meta.notes


def test_as_a_decorator_the_second_call_is_kept(tmp_path: Path) -> None:
    job = Job()
    step = record(tmp_path / "t.json")(job.step)
    written = []
    for _ in range(3):
        step()
        written.append((tmp_path / "t.json").stat().st_mtime_ns)
    assert "first_step" not in check.load(tmp_path / "t.json").meta.notes
    assert written[1] == written[2] > written[0]


def test_a_loop_that_ends_too_early_warns_and_writes_nothing(tmp_path: Path) -> None:
    job = Job()
    with pytest.warns(UserWarning, match="ended after 1 steps"), Recorder(tmp_path / "t.json") as recorder:
        job.step()
        recorder.step()
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_told_before_the_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"), record(tmp_path / "missing" / "t.json"):
        pytest.fail("the step must not run")


def test_item_is_a_host_sync() -> None:
    with recording() as session:
        (torch.ones(2) + 1).sum().item()
    assert [op.kind for op in session.tape.ops] == ["compute"] * 3 + ["host_sync"]
    assert session.tape.notes["host_syncs"] == 1


def test_memory_that_is_used_again_is_another_storage() -> None:
    with recording() as session:
        for _ in range(5):
            torch.ones(1000).add_(1)
            gc.collect()
    written = [op.writes[0][0] for op in session.tape.ops if op.name == "aten.ones"]
    assert len(set(written)) == len(written) == 5


def test_recomputation_under_checkpointing_has_its_own_phase() -> None:
    layer = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    with recording() as session:
        out = torch.utils.checkpoint.checkpoint(layer, torch.ones(2, 4, requires_grad=True), use_reentrant=False)
        out.sum().backward()
    phases = [op.phase for op in session.tape.ops if op.op_class == "gemm"]
    # checkpointing stops recomputing before the last matmul: its result is not needed again
    assert phases == ["forward"] * 2 + ["recompute"] + ["backward"] * 4


def test_index_put_counts_what_it_changes() -> None:
    table, rows, columns = torch.zeros(50, 20), torch.tensor([1, 2, 3]), torch.tensor([0, 5, 7])
    with recording() as session:
        table[rows, columns] = torch.ones(3)
        table[rows] = torch.ones(3, 20)
        table[table > 0] = 2.0
    puts = [op for op in session.tape.ops if op.name == "aten.index_put_"]
    assert [op.bytes_written for op in puts] == [4 * 3, 4 * 60, 4 * 1000]  # a mask may change everything


def test_reads_by_the_host_hold_it() -> None:
    with recording() as session:
        assert (torch.ones(2) * 3).tolist() == [3.0, 3.0]
    assert [op.kind for op in session.tape.ops] == ["compute", "compute", "host_sync"]


def test_on_a_gpu_streams_and_events_work_as_before_and_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for CUDA's: several objects may be one stream, and all waiting goes through events."""

    class Stream(str):
        __slots__ = ()

    class Event:
        done: ClassVar[list[tuple[str, str | None]]] = []

        def record(self, stream: Stream | None = None) -> None:
            self.done.append(("record", stream))

        def wait(self, stream: Stream | None = None) -> None:
            self.done.append(("wait", stream))

    now = ["main"]
    device = accessors.Device(True, lambda: Stream(now[0]), lambda: Stream("main"))
    monkeypatch.setattr(accessors, "stream_device", lambda: device)
    monkeypatch.setattr(accessors, "cuda_event_type", lambda: Event)
    with recording() as session:
        first, second = Event(), Event()
        rows = torch.ones(2)
        first.record()
        first.wait(Stream("side"))
        now[0] = "side"
        rows.add_(1)
        second.record(Stream("side"))
        now[0] = "main"
        second.wait()
        rows.add_(1)
    found = [(op.kind, op.stream, op.deps) for op in session.tape.ops]
    assert found == [
        ("compute", "compute", []), ("wait", "stream", [0]), ("compute", "stream", []), ("wait", "compute", [2]),
        ("compute", "compute", []),
    ]  # fmt: skip
    assert Event.done == [("record", None), ("wait", "side"), ("record", "side"), ("wait", None)]
