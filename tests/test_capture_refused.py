"""A combination that cannot be is refused by the rule it breaks, in one line, before any process starts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from emulator.capture.workload import find, load
from emulator.errors import InputError

pytestmark = pytest.mark.torch

REFUSED = [
    ("llama.py", "--pp 2 --schedule 2F2B", "--schedule: no schedule '2F2B'"),
    ("llama.py", "--pp 4 --microbatches 2", "--microbatches: 1F1B needs at least as many as stages: 2 < 4"),
    ("llama.py", "--pp 8 --microbatches 8", "--pp: 4 layers are too few for 8 stages"),
    ("llama.py", "--pp 2 --schedule DualPipeV --microbatches 3", "--microbatches: DualPipeV needs at least as many"),
    (
        "llama.py", "--pp 2 --schedule Interleaved1F1B --microbatches 5",
        "--microbatches: Interleaved1F1B runs them in rounds of about 2: 5 do not divide into 2 rounds",
    ),
    ("llama.py", "--pp 2 --schedule ZBVZeroBubble --stages-per-rank 3", "--stages-per-rank: ZBVZeroBubble has 2 on"),
    ("llama.py", "--stages-per-rank 2", "--stages-per-rank: stages belong to a pipeline: --pp is 1"),
    ("llama.py", "--dp 2 --tp 2", "--dp: DDP does not take the sharded parameters of --tp"),
    ("llama.py", "--dp 2 --fsdp 2 --cp 2", "--dp: replicas of sharded groups go with --fsdp alone"),
    ("llama.py", "--fsdp 2 --zero 1", "--zero: 1 is data parallel without --fsdp"),
    ("llama.py", "--dp 2 --zero 3", "--zero: 3 shards over --fsdp, which is 1"),
    ("llama.py", "--zero 1", "--zero: 1 shards the optimizer over --dp, which is 1"),
    ("llama.py", "--fsdp 2 --fsdp-version 1 --tp 2", "--fsdp-version: 1 is data parallel only"),
    ("llama.py", "--prefetch 1", "--prefetch: is of --fsdp (version 2)"),
    ("llama.py", "--master-dtype float32", "--master-dtype: it is --fsdp that keeps parameters in another dtype"),
    ("llama.py", "--cp 3", "--cp: 32 tokens (two chunks per rank) of tiny do not divide by 6"),
    ("llama.py", "--tp 8", "--tp: 4 heads of tiny do not divide by 8"),
    (
        "llama.py", "--pp 2 --schedule ZBVZeroBubble --recompute selective",
        "--recompute: ZBVZeroBubble runs the two halves of a backward apart",
    ),
    ("moe.py", "--ep 3", "--ep: 8 experts of tiny do not divide by 3"),
    ("moe.py", "--ep 8 --tp 2", "--ep: 8 experts of tiny do not divide by 16"),
    ("moe.py", "--ep 2 --tp 2 --no-sp", "--tp: experts over --tp take sequence parallelism"),
    ("moe.py", "--model deepseek-v3 --tp 2 --ep 2", "--tp: the latent attention of deepseek-v3 is not cut by it"),
]  # fmt: skip


@pytest.mark.parametrize(("workload", "options", "reason"), REFUSED, ids=[options for _, options, _ in REFUSED])
def test_the_rule_is_named(workload: str, options: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        load(find(workload), options.split())
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fake_world_cannot_route_by_data(tmp_path: Path) -> None:
    from emulator.capture.command import record_command  # noqa: PLC0415

    with pytest.raises(InputError, match="no data to route by") as caught:
        record_command(tmp_path / "t.json", "workloads/moe.py", ["--ep", "2"], world=2)
    assert caught.value.remedy == "balanced or skewed"
    assert list(tmp_path.iterdir()) == []


def test_a_script_says_itself_whether_it_wants_memory_events(tmp_path: Path) -> None:
    from emulator.capture.command import record_command  # noqa: PLC0415

    (tmp_path / "train.py").write_text("pass\n")
    with pytest.raises(InputError, match="--no-memory"):
        record_command(tmp_path / "t.json", str(tmp_path / "train.py"), [], nproc=1, memory=False)
