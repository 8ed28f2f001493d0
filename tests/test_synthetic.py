"""Jobs made by formula: what the benchmarks replay is what they say it is."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from emulator.api import run
from emulator.trace import io
from emulator.trace.check import faults, load
from emulator.trace.expand import templates, unroll

SPEC = importlib.util.spec_from_file_location("synthetic", Path(__file__).parent.parent / "benchmarks" / "synthetic.py")
synthetic = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(synthetic)

SMALL = {
    "llama": {"data": 2, "stages": 4, "tensor": 2, "microbatches": 6, "layers": 10},
    "gpipe": {"data": 2, "tensor": 2, "stages": 2, "layers": 4, "microbatches": 3},
    "pipeline": {"stages": 4, "microbatches": 6},
    "collective": {"ranks": 8},
    "computing": {"ranks": 8, "kernels": 3},
}


def counts(trace, program):
    """How often a program does each kind of thing."""
    ops = templates(trace).ops
    return Counter(ops[t].collective or ops[t].kind for t in unroll(trace)[program].template.tolist())


@pytest.mark.parametrize("name", SMALL)
def test_jobs_are_sound_and_survive_a_file(tmp_path, name):
    trace = synthetic.JOBS[name](**SMALL[name])
    assert list(faults(trace)) == []
    io.write(trace, tmp_path / "t.json")
    assert load(tmp_path / "t.json") == trace
    assert run(trace, "fattree").step_seconds > 0


def test_the_405b_step_has_the_collectives_of_its_formula():
    """4 + 4 tensor collectives per layer and microbatch, one gather and one reduction per layer over the data axis."""
    trace = synthetic.llama(data=2)
    layers = [8] * 14 + [7] * 2  # 126 over 16 stages
    for stage in (0, 7, 15):
        mine, found = layers[stage], counts(trace, stage)
        assert found["all_gather"] == mine * (16 * 4 + 1)
        assert found["reduce_scatter"] == mine * (16 * 4 + 1)
        assert found["compute"] == mine * 16 * 4 + 1
        assert found["send"] == found["recv"] == 16 * ((stage > 0) + (stage < 15))
    tags = unroll(trace)[15].tags["layer"]
    assert sorted(set(tags[tags >= 0].tolist())) == list(range(119, 126))


def test_the_gpipe_job_has_as_many_ops_as_the_peer_replayed():
    """8,448 nodes on 8 ranks: sends, receives, kernels and all-reduces (waits are ours alone)."""
    trace = synthetic.gpipe(data=2, tensor=2, stages=2)
    per_stage = [sum(n for kind, n in counts(trace, p).items() if kind != "wait") for p in range(2)]
    assert 4 * sum(per_stage) == 8448


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("microbatches", [1, 3, 8, 40])
def test_a_pipeline_with_free_transfer_takes_its_closed_form(stages, microbatches):
    """1F1B: (p - 1 + m) forwards and backwards, here of 1 and 2 s, and the optimizer's 1 s."""
    trace = synthetic.pipeline(stages=stages, microbatches=microbatches, size=2, seconds=1.0)
    expected = (stages - 1 + microbatches) * 3.0 + 1.0
    assert run(trace, "fattree").step_seconds == pytest.approx(expected, rel=1e-5)  # microseconds a message are left


def test_a_long_pipeline_is_a_short_file(tmp_path):
    sizes = []
    for microbatches in (16, 32768):
        io.write(synthetic.pipeline(microbatches=microbatches), tmp_path / "t.json")
        sizes.append((tmp_path / "t.json").stat().st_size)
    assert sizes[1] < 1.05 * sizes[0]


def test_ranks_that_only_compute_end_when_the_slowest_does():
    trace = synthetic.computing(ranks=8, kernels=3)
    slowest = np.array([op.duration.values for op in trace.programs[0].ops]).sum(axis=0).max()
    assert run(trace, "fattree").step_seconds == pytest.approx(slowest, rel=1e-12)
