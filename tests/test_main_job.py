"""The main job: the shipped 8B trace on the three fabrics."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

import emulator
from emulator.api import open_job
from emulator.assets import folder
from emulator.cost.lower import lower
from emulator.network.collectives import bus_factor
from emulator.replay.simulate import Options
from emulator.result.io import encode
from emulator.topology.load import load
from emulator.trace.check import load as load_trace
from emulator.trace.expand import rows, templates
from emulator.trace.schema import Program
from tests.jobs import replay

FABRICS = ["fattree", "torus", "fiber"]


@pytest.fixture(scope="module")
def llama():
    return load_trace(folder("traces") / "llama.json")


@pytest.fixture(scope="module")
def results(llama):
    return {fabric: emulator.run(llama, fabric) for fabric in FABRICS}


def test_three_fabrics_give_three_step_times(results):
    steps = [results[fabric].step_seconds for fabric in FABRICS]
    assert min(abs(a - b) for a, b in zip(steps, [*steps[1:], steps[0]], strict=True)) > 0.01 * max(steps)


@pytest.mark.parametrize("fabric", FABRICS)
def test_the_partition_adds_up_and_links_carried_what_the_collectives_moved(results, fabric):
    result = results[fabric]
    for ranks in result.ranks:
        assert abs(ranks.partition.sum_minus_step_seconds) < 1e-9
    groups = {name for link in result.links for name in link.groups}
    assert groups == {"fsdp", "tp"}
    assert result.topology.links_carrying_traffic > 0


def test_collectives_are_counted_and_their_bandwidths_follow_from_their_times(results):
    found = {(use.collective, use.group): 0 for use in results["fattree"].collectives}
    for use in results["fattree"].collectives:
        found[use.collective, use.group] += use.count
        assert use.algbw_bytes_per_second == pytest.approx(use.bytes / use.seconds)
        factor = bus_factor(use.collective, use.group_size)
        assert use.busbw_bytes_per_second == pytest.approx(use.bytes / use.seconds * factor)
    assert found == {
        ("all_gather", "fsdp"): 2 * 32 + 1,
        ("reduce_scatter", "fsdp"): 32 + 1,
        ("all_gather", "tp"): 4 * 32 + 2,
        ("reduce_scatter", "tp"): 4 * 32 + 2,
        ("all_reduce", "tp"): 2 * 32 + 4,
    }


def test_two_runs_give_the_same_document_but_for_the_engine(llama):
    first, second = (json.loads(encode(emulator.run(llama, "torus"))) for _ in range(2))
    assert first.pop("engine")["events"] > 0
    second.pop("engine")
    assert first == second


def test_folded_equals_whole_on_the_shipped_trace(llama):
    job = open_job(llama, "torus")
    folded, whole = job.run(), job.run(Options(folding=False))
    assert (len(folded.ranks), len(whole.ranks)) == (1, 64)
    assert folded.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)


def flat(trace):
    """The trace with its blocks written out, every dependency by row."""
    ops = templates(trace).ops
    programs = []
    for p in range(len(trace.programs)):
        unrolled = rows(trace, p)
        written = []
        for row, template in enumerate(unrolled.template.tolist()):
            deps = unrolled.deps[unrolled.deps_ptr[row] : unrolled.deps_ptr[row + 1]].tolist()
            layer = int(unrolled.tags["layer"][row])
            written.append(
                msgspec.structs.replace(
                    ops[template],
                    id=row,
                    deps=deps,
                    reads=[],
                    writes=[],
                    storage=None,
                    layer=None if layer < 0 else layer,
                )
            )
        programs.append(Program(written))
    return msgspec.structs.replace(trace, programs=programs, blocks={})


def timed_flat(llama):
    """The lowered 8B trace written out, with the times of an H100 as durations."""
    job = open_job(llama, "fattree")
    lowered = lower(llama, "compile").trace
    for op, seconds in zip(templates(lowered).ops, job.timed.seconds, strict=True):
        op.duration = seconds or None
    return flat(lowered)


def backward_gathers(trace):
    """(position of the gather, position of the wait of the compute stream for it) in the backward pass."""
    ops = trace.programs[0].ops
    found = []
    for i, op in enumerate(ops):
        if op.collective == "all_gather" and op.group == "fsdp" and op.phase == "backward":
            waits = [j for j, w in enumerate(ops) if w.kind == "wait" and w.stream == "compute" and i in w.deps]
            found.append((i, min(waits)))
    return found


def test_the_next_blocks_gather_runs_under_compute_and_prefetching_pays(llama):
    trace = timed_flat(llama)
    topology = load("fattree", ranks=64)
    found = replay(trace, topology)
    table = found.programs[0]
    start, end = np.empty(len(table.layer)), np.empty(len(table.layer))
    for line in found.timeline:
        start[line.op], end[line.op] = line.start, line.end
    computes = np.array([table.kind[i] == "compute" and table.stream[i] == "compute" for i in range(len(start))])
    gathers = backward_gathers(trace)
    assert len(gathers) >= 31
    for gather, _ in gathers[1:]:
        under = np.minimum(end[computes], end[gather]) - np.maximum(start[computes], start[gather])
        assert under[under > 0].sum() > 0.5 * (end[gather] - start[gather])
    ops = trace.programs[0].ops
    for gather, wait in gathers[1:]:  # without the prefetch a block is gathered when it is needed
        before = max(j for j in range(wait) if ops[j].stream == "compute" and ops[j].kind == "compute")
        ops[gather].deps = [*ops[gather].deps, before]
    assert replay(trace, topology).step_seconds > 1.02 * found.step_seconds
