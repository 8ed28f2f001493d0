"""What-if figures come from replays: each equals a real run with that change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.api import open_job
from emulator.replay.perturb import Perturbation
from emulator.replay.simulate import Options
from emulator.report.changes import Change
from emulator.report.hints import hints
from emulator.report.levers import changes, inner_first
from emulator.topology.load import load
from emulator.trace.schema import BlockUse, PerRank
from emulator.whatif import add_what_if, step_with
from tests.jobs import collective, compute, job, wait


@pytest.fixture
def opened():
    even = PerRank(["dp"], [2e-3, 2e-3, 5e-3, 2e-3])
    ops = [compute(0, even), collective(1, "all_reduce", "dp", 10**8, deps=[0]), wait(2, 1), compute(3, 1e-3)]
    return open_job(job({"dp": 4, "tp": 8}, ops), load("fattree", ranks=32))


def test_free_communication_equals_a_run_without_its_bytes(opened):
    """What is left is the slowest rank's compute."""
    assert step_with(opened, Options(), Change("free", "dp")) == pytest.approx(6e-3, rel=1e-9)


def test_faster_links_equal_a_run_on_such_a_topology(opened):
    links = np.flatnonzero(opened.topology.link_level == opened.topology.level_names.index("NIC"))
    twice = replace(opened, topology=opened.topology.with_capacity(links, 2.0))
    assert step_with(opened, Options(), Change("faster", "NIC", 2.0)) == twice.run().step_seconds


def test_even_ranks_equal_a_run_at_the_median(opened):
    ops = opened.trace.programs[0].ops
    ops[0].duration = 2e-3
    calm = open_job(opened.trace, opened.topology).run().step_seconds
    assert step_with(opened, Options(), Change("even")) == pytest.approx(calm, rel=1e-12)
    slow = Options(perturbation=Perturbation({5: 2.0}))
    assert step_with(opened, slow, Change("even")) == pytest.approx(calm, rel=1e-12)


def test_the_table_is_filled_best_first(opened):
    found = add_what_if(opened.run(), opened, Options()).what_if
    assert [entry.step_seconds for entry in found] == sorted(entry.step_seconds for entry in found)
    assert {entry.change for entry in found} >= {"free", "even"}
    for entry in found:
        assert entry.step_seconds == step_with(opened, Options(), Change(entry.change, entry.target, entry.factor))


@pytest.fixture
def scattered():
    """Tensor parallel on the slow axis of the mesh: every all-gather of it goes over the NICs."""
    ops = [compute(0, 1e-3), collective(1, "all_gather", "tp", 10**8, deps=[0]), wait(2, 1), compute(3, 1e-3)]
    return open_job(job({"tp": 8, "dp": 4}, ops), load("fattree", ranks=32))


def test_another_order_of_axes_is_tried_where_tensor_parallel_leaves_the_node(scattered):
    result = add_what_if(scattered.run(), scattered, Options())
    (entry,) = [entry for entry in result.what_if if entry.change == "place"]
    assert entry.target == "dp,tp"
    placed = scattered.run(Options(placement=scattered.placement("dp,tp")))
    assert entry.step_seconds == placed.step_seconds < result.step_seconds
    (hint,) = [hint.text for hint in hints(result) if hint.rule == "crossing"]
    assert "(replayed, ranks placed by axes, dp,tp: -" in hint
    assert "replayed" not in " ".join(hint.text for hint in hints(scattered.run()))  # nothing was: nothing is said
    assert "place" not in {change.kind for change in changes(placed)}


def test_axes_that_need_fast_links_go_inside():
    assert inner_first(["tp", "dp", "pp", "ep"]) == ["pp", "dp", "ep", "tp"]
    assert inner_first(["pp", "dp_shard", "cp", "tp"]) == ["pp", "dp_shard", "cp", "tp"]


def test_a_prompt_host_equals_a_run_without_host_time():
    def made(host):
        ops = [compute(i, 1e-3, host_seconds=host) for i in range(5)]
        return open_job(job({"dp": 4}, [BlockUse("b", 3)], blocks={"b": ops}), load("fattree", ranks=4))

    late, prompt = made(3e-3), made(0)
    found = add_what_if(late.run(), late, Options()).what_if
    (entry,) = [entry for entry in found if entry.change == "host"]
    assert entry.step_seconds == pytest.approx(prompt.run().step_seconds, rel=1e-12)
