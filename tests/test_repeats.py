"""Long repeats: a steady state is found and jumped over, and nothing that is counted differs from the long way."""

from __future__ import annotations

import pytest

from emulator.topology.load import load
from emulator.trace.check import faults
from emulator.trace.repeats import shorten
from emulator.trace.schema import BlockUse, PerRank
from tests.jobs import collective, compute, job, pipeline, replay, star


def both(trace, topology, **options):
    assert not list(faults(trace))
    short = replay(trace, topology, **options)
    long = replay(trace, topology, jump_repeats=False, **options)
    assert not long.omitted
    assert short.step_seconds == pytest.approx(long.step_seconds, rel=1e-9)
    assert short.folding.op_executions_represented == long.folding.op_executions_represented
    for a, b in zip(short.collectives, long.collectives, strict=True):
        assert (a.collective, a.count, a.bytes) == (b.collective, b.count, b.bytes)
        assert a.seconds == pytest.approx(b.seconds, rel=1e-9)
    for a, b in zip(short.links, long.links, strict=True):
        assert (a.link, a.count) == (b.link, b.count)
        assert a.bytes == pytest.approx(b.bytes, rel=1e-9)
    return short, long


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [100, 1000])
def test_a_pipeline_of_many_microbatches(tmp_path, stages, microbatches):
    short, _ = both(pipeline(stages, microbatches), star(tmp_path, stages))
    assert short.omitted
    assert short.folding.op_executions < 4000


@pytest.mark.parametrize("repeats", [1, 100, 10**12])
def test_an_empty_block_does_nothing_however_often(tmp_path, repeats):
    trace = job({"dp": 2}, [BlockUse("nothing", repeats, {"layer": "0+1"}), compute(0, 1e-3)], blocks={"nothing": []})
    assert not list(faults(trace))
    found = replay(trace, star(tmp_path, 2))
    assert (found.step_seconds, found.folding.op_executions_represented) == (1e-3, 2)


def test_the_steady_state_of_uneven_stages(tmp_path):
    trace = pipeline(4, 300)
    for stage, factor in enumerate([1.0, 1.7, 1.2, 0.9]):
        for name in (f"f{stage}", f"b{stage}", f"fb{stage}"):
            for op in trace.blocks[name]:
                if op.kind == "compute":
                    op.duration *= factor
    short, _ = both(trace, star(tmp_path, 4, latency="3 us"))
    assert short.omitted


def test_step_time_grows_by_a_period_a_microbatch(tmp_path):
    """Equal stages, free transfers: (m + p - 1) slots of forward plus backward."""
    topology = star(tmp_path, 4, bandwidth="100000 GB/s")
    for microbatches in (64, 4096, 32768):
        found = replay(pipeline(4, microbatches, size=1), topology)
        assert found.step_seconds == pytest.approx((microbatches + 3) * 3e-3, rel=1e-6)


def test_microbatch_numbers_after_the_jump(tmp_path):
    short, long = both(pipeline(2, 200), star(tmp_path, 2))
    for a, b in zip(short.programs, long.programs, strict=True):
        assert a.microbatch.max() == b.microbatch.max() == 199


def test_ranks_that_do_not_settle_are_replayed_the_long_way(tmp_path):
    """Two ranks that never meet, at different speeds: there is no common period."""
    trace = job({"dp": 2}, [BlockUse("b", 200)], blocks={"b": [compute(0, PerRank(["dp"], [1e-3, 1.7e-3]))]})
    short, _ = both(trace, star(tmp_path, 2))
    assert not short.omitted


def test_two_long_repeats_one_after_the_other(tmp_path):
    reduce = collective(1, "all_reduce", "dp", 10**6, deps=[0], stream="compute")
    trace = job(
        {"dp": 2},
        [BlockUse("a", 150), compute(0, 1e-3), BlockUse("b", 92)],
        blocks={"a": [compute(0, 1e-3), reduce], "b": [compute(0, 2e-3)]},
    )
    short, _ = both(trace, star(tmp_path, 2))
    assert [jump.count for jump in short.omitted] == [96, 48]


def test_jumps_and_folding_together():
    trace = pipeline(4, 200, world=32)
    short, _ = both(trace, load("fattree", ranks=32))
    assert short.omitted
    assert short.folding.rank_classes == 4


def test_host_time_runs_ahead_and_is_never_jumped(tmp_path):
    trace = job({"dp": 1}, [BlockUse("b", 200)], blocks={"b": [compute(0, 2e-3, host_seconds=1e-3)]})
    short, _ = both(trace, star(tmp_path, 1))
    assert not short.omitted


def test_shortening_keeps_a_trace_legal():
    short, cuts = shorten(pipeline(4, 500), 24)
    assert not list(faults(short))
    assert [cut.count for cut in cuts] == [497 - 24]
    assert shorten(pipeline(4, 40), 24) == (pipeline(4, 40), [])
