"""Compute slowed by communication that is resident on the chip: the rate, the extra time, and every short cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.api import open_job
from emulator.errors import InputError
from emulator.replay.perturb import parse_chip_share
from emulator.replay.simulate import Options
from emulator.report.changes import Change, describe
from emulator.result.io import read
from emulator.result.schema import WhatIf
from emulator.topology.load import load
from emulator.trace.schema import Group
from emulator.whatif import step_with
from tests.jobs import collective, compute, job, pipeline, replay, spans, star, wait
from tests.test_scale import same, step

GB = 10**9  # a second on a star of 1 GB/s


def gather(id, size, **more):
    return collective(id, "all_gather", "dp", 2 * size, **more)  # the other half comes in: size bytes


def result_of(trace, topology, share):
    opened = open_job(trace, topology, device="h100", lowering="eager")
    return opened.run(Options(algorithms="ring", shares={"node": share}))


def test_a_kernel_computes_at_the_rest_of_the_chip_while_a_transfer_is_resident(tmp_path):
    """20 s of transfer take a quarter: 15 s of 100 s of work are done by then, the rest takes 85 s."""
    trace = job({"dp": 2}, [gather(0, 20 * GB), compute(1, 100.0)])
    found = replay(trace, star(tmp_path, 2), shares={"node": 0.25})
    assert spans(found)[0][2] == pytest.approx(20)
    assert spans(found)[1][2] == pytest.approx(105)


def test_a_kernel_that_waits_for_its_peer_is_resident_too(tmp_path):
    """Rank 0 posts at 0, rank 1 at 40; the transfer ends at 60: rank 0 has done 30 of its 50 s, and ends at 80 - 10."""
    late = [compute(0, 40.0, stream="comm"), gather(1, 20 * GB)]
    trace = job({"dp": 2}, [gather(0, 20 * GB), compute(1, 50.0)], late)
    found = replay(trace, star(tmp_path, 2), shares={"node": 0.5})
    assert spans(found, 0)[1][2] == pytest.approx(60 + (50 - 30))
    assert spans(found, 1)[0][2] == pytest.approx(40)  # nothing is resident there yet


def test_what_several_transfers_leave_is_their_product(tmp_path):
    """Two exchanges of a second share the link (both end at 2 s), each takes half of what it finds: rate 1/4."""
    two = [gather(0, GB, stream="a"), collective(1, "all_gather", "twin", 2 * GB, stream="b"), compute(2, 1.0)]
    trace = job({"dp": 2}, two, groups={"dp": Group(axes=["dp"]), "twin": Group(axes=["dp"])})
    found = replay(trace, star(tmp_path, 2), shares={"node": 0.5})
    assert spans(found)[2][2] == pytest.approx(2 + 0.5)


def test_kernels_of_one_run_end_where_their_work_is_done(tmp_path):
    """Three kernels of 2 s; a transfer ends at 4 s, at half rate until then: 4, 6, 8."""
    trace = job({"dp": 2}, [gather(0, 4 * GB), compute(1, 2.0), compute(2, 2.0), compute(3, 2.0)])
    found = spans(replay(trace, star(tmp_path, 2), shares={"node": 0.5}))
    assert [found[row][2] for row in (1, 2, 3)] == pytest.approx([4, 6, 8])
    assert [found[row][0] for row in (1, 2, 3)] == pytest.approx([0, 4, 6])


def test_the_share_is_that_of_the_links_used():
    """Groups inside a node use NVLink only, groups across nodes the NICs too: the larger share of both holds."""
    trace = job({"dp": 2, "tp": 8}, [collective(0, "all_gather", "tp", 8 * GB), compute(1, 1.0)])
    fabric = load("fattree", ranks=16)
    inside = spans(replay(trace, fabric, shares={"NIC": 0.5}))
    assert inside[1][2] == pytest.approx(1)
    assert spans(replay(trace, fabric, shares={"NVLink": 0.5}))[1][2] > 1.005
    across = job({"dp": 2, "tp": 8}, [collective(0, "all_gather", "dp", 200 * GB), compute(1, 0.5)])
    assert spans(replay(across, fabric, shares={"NIC": 0.5, "NVLink": 0.1}))[1][2] == pytest.approx(1)


def test_slowed_time_is_part_of_compute(tmp_path):
    trace = job({"dp": 2}, [gather(0, 20 * GB), compute(1, 100.0), compute(2, 50.0, stream="other")])
    ranks = result_of(trace, star(tmp_path, 2), 0.25).ranks[0]
    assert ranks.partition.compute_seconds == pytest.approx(105)
    assert ranks.partition.slowed_seconds == pytest.approx(5)  # of the chip, not of each of its streams
    assert abs(ranks.partition.sum_minus_step_seconds) < 1e-9


def test_slowed_time_is_told_by_phase(tmp_path):
    """20 s at 3/4: 5 s of them are extra, 2.5 s in the 7.5 s of work of the forward that end at 10 s."""
    kernels = [compute(1, 7.5, phase="forward"), compute(2, 50.0, phase="backward")]
    ranks = result_of(job({"dp": 2}, [gather(0, 20 * GB), *kernels]), star(tmp_path, 2), 0.25).ranks[0]
    assert ranks.slowed_phases == pytest.approx({"forward": 2.5, "backward": 2.5})
    assert ranks.compute_phases == pytest.approx({"forward": 10, "backward": 52.5})


def test_exposed_transfers_slow_nobody(tmp_path):
    trace = job({"dp": 2}, [gather(0, GB), wait(1, 0), compute(2, 1.0)])
    ranks = result_of(trace, star(tmp_path, 2), 0.5).ranks[0]
    assert (ranks.partition.slowed_seconds, ranks.partition.compute_seconds) == (0, pytest.approx(1))


def test_without_a_share_there_is_no_rate(tmp_path):
    trace = job({"dp": 2}, [gather(0, GB), compute(1, 1.0)])
    found = open_job(trace, star(tmp_path, 2), device="h100", lowering="eager").run()
    assert found.compute_rates == []
    assert found.ranks[0].partition.slowed_seconds == 0


@pytest.mark.parametrize("fabric", ["fattree", "torus"])
@given(
    shares=st.lists(st.sampled_from([0.0, 0.05, 0.2, 0.5]), min_size=2, max_size=2),
    seed=st.integers(0, 2),
)
@settings(max_examples=8, deadline=None)
def test_folding_and_the_closed_form_stay_exact(fabric, shares, seed):
    trace = step({"pp": 2, "dp": 4, "tp": 4})
    topology = load(fabric, ranks=32)
    named = dict(zip(topology.level_names, shares, strict=False))
    placement = np.random.default_rng(seed).permutation(32) if seed else None
    options = {"shares": named, "placement": placement}
    whole = replay(trace, topology, folding=False, **options)
    same(trace, topology, whole, **options)
    same(trace, topology, whole, closed_form=False, **options)
    same(trace, topology, whole, private_routes=False, drop_unsaturable=False, **options)


def test_a_steady_state_is_jumped_over_at_the_slowed_rate(tmp_path):
    trace = pipeline(4, 300, size=10**6)
    topology = star(tmp_path, 4)
    long = replay(trace, topology, shares={"node": 0.3}, jump_repeats=False)
    short = replay(trace, topology, shares={"node": 0.3})
    assert short.omitted
    assert short.step_seconds == pytest.approx(long.step_seconds, rel=1e-9)
    assert short.step_seconds > replay(trace, topology).step_seconds * 1.01


@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.01, 2), st.booleans()), min_size=1, max_size=6),
       st.sampled_from([0.1, 0.5, 0.9]))  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_the_slowed_part_is_the_difference_to_the_kernels_own_times(tmp_path_factory, parts, share):
    """One compute stream: compute line - slowed = sum of the durations, whatever overlaps what."""
    ops, last = [], None
    for i, (seconds, gigabytes, waits) in enumerate(parts):
        ops.append(gather(3 * i, int(gigabytes * GB) // 2 * 2))
        if waits and last is not None:
            ops.append(wait(3 * i + 1, last))
        ops.append(compute(3 * i + 2, seconds))
        last = 3 * i
    found = result_of(job({"dp": 2}, ops), star(tmp_path_factory.mktemp("star"), 2), share).ranks[0].partition
    assert found.compute_seconds - found.slowed_seconds == pytest.approx(sum(p[0] for p in parts), rel=1e-9)
    assert abs(found.sum_minus_step_seconds) < 1e-9 * max(1.0, found.compute_seconds)


def test_a_run_without_the_slowing_is_what_the_lever_says(tmp_path):
    trace = job({"dp": 2}, [gather(0, 20 * GB), compute(1, 100.0)])
    opened = open_job(trace, star(tmp_path, 2), device="h100", lowering="eager")
    assert step_with(opened, Options(shares={"node": 0.25}), Change("alone")) == opened.run().step_seconds
    assert describe(WhatIf("alone", "", 1.0, 1.0)) == "compute not slowed by communication"


def test_shares_are_read_by_the_name_of_links():
    fabric = load("fattree", ranks=16)
    assert parse_chip_share("nvlink=0.1,NIC=0", fabric) == {"NVLink": 0.1, "NIC": 0.0}


WRONG = [("ICI=0.1", "its links: NVLink, NIC"), ("NIC", "0 to below 1"), ("NIC=x", "0 to below 1")]
WRONG += [(f"NIC={share}", "0 to below 1") for share in ("1", "-1", "nan")]


@pytest.mark.parametrize(("text", "reason"), WRONG)
def test_bad_shares(text, reason):
    with pytest.raises(InputError) as error:
        parse_chip_share(text, load("fattree", ranks=16))
    assert reason in f"{error.value.reason} {error.value.remedy}"


def test_the_report_says_what_was_slowed(emu):
    code, out, _ = emu("run", "--trace", "llama.json", "--chip-share", "NVLink=0.1,NIC=0.1", "--json", "r.json")
    assert code == 0
    assert "of it slowed" in out
    found = read("r.json")
    for ranks in found.ranks:
        assert 0 < ranks.partition.slowed_seconds < 0.19 * ranks.partition.compute_seconds
    assert found.compute_rates[0].rate.min() == pytest.approx(0.81)  # an all-gather of each group at once
