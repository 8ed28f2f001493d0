"""What-if figures come from replays: each equals a real run with that change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emulator.api import open_job
from emulator.replay.perturb import Perturbation
from emulator.replay.simulate import Options
from emulator.report.levers import Change
from emulator.topology.load import load
from emulator.trace.schema import PerRank
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
