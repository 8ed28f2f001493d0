"""Short cuts that change no answer: closed form, reductions, and folding under perturbations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.replay.perturb import LinkChange, Perturbation, parse_degrade, parse_straggler
from emulator.topology.load import load
from emulator.trace.schema import RanksByAxis
from tests.jobs import class_of, collective, compute, job, replay, spans, star, wait
from tests.test_fold import MB, ends, training_step

SIZES = [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 64 * MB)]


def step(axes, sizes=SIZES, stages=2):
    trace = training_step(axes, sizes, stages, 2, 1e-3)
    trace.ranks = RanksByAxis("pp", list(range(stages)))
    return trace


def same(trace, topology, reference, **options):
    """Every rank's completion times agree with the reference run's."""
    found = replay(trace, topology, **options)
    for a, b in zip(ends(found, trace.world_size), ends(reference, trace.world_size), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-15)
    assert found.step_seconds == pytest.approx(reference.step_seconds, rel=1e-9)
    return found


@pytest.mark.parametrize("fabric", ["fattree", "fiber"])
@pytest.mark.parametrize(
    "axes", [{"pp": 2, "dp": 4, "tp": 8}, {"pp": 2, "dp": 16, "tp": 4}, {"pp": 4, "dp": 8, "tp": 8}]
)
def test_closed_form_equals_colours_and_the_whole(fabric, axes):
    trace = step(axes, stages=axes["pp"])
    topology = load(fabric, ranks=trace.world_size)
    whole = replay(trace, topology, folding=False)
    closed = same(trace, topology, whole)
    coloured = same(trace, topology, whole, closed_form=False)
    assert (closed.folding.method, coloured.folding.method) == ("closed form", "colour refinement")
    assert closed.folding.groups == coloured.folding.groups
    assert closed.folding.rank_classes == coloured.folding.rank_classes == axes["pp"]
    own = [link for link in coloured.links if link.level in {link.level for link in closed.links}]
    for a, b in zip(closed.links, own, strict=False):
        assert (a.level, a.count, a.groups) == (b.level, b.count, b.groups)
        assert a.bytes == pytest.approx(b.bytes, rel=1e-9)


@pytest.mark.parametrize(("fabric", "overrides"), [("torus", {}), ("fattree", {"spine.oversubscription": "2"})])
def test_what_is_not_regular_is_folded_by_colours(fabric, overrides):
    trace = step({"pp": 2, "dp": 16, "tp": 8})
    topology = load(fabric, ranks=trace.world_size, overrides=overrides)
    assert same(trace, topology, replay(trace, topology, folding=False)).folding.method == "colour refinement"


def test_a_job_placed_across_node_borders_is_not_mistaken_for_a_regular_one():
    """Nodes of 8 and tensor parallel over 6: some groups cross nodes, some do not."""
    trace = step({"pp": 2, "dp": 4, "tp": 6})
    topology = load("fattree", ranks=48)
    assert same(trace, topology, replay(trace, topology, folding=False)).folding.method == "colour refinement"


@pytest.mark.parametrize("fabric", ["fattree", "fiber", "torus"])
def test_reductions_alone_change_nothing(fabric):
    trace = step({"pp": 2, "dp": 8, "tp": 4})
    topology = load(fabric, ranks=trace.world_size)
    plain = {"folding": False, "drop_unsaturable": False, "private_routes": False}
    reference = replay(trace, topology, **plain)
    for switch in ("drop_unsaturable", "private_routes"):
        found = same(trace, topology, reference, **(plain | {switch: True}))
        assert [(link.link, link.count) for link in found.links] == [
            (link.link, link.count) for link in reference.links
        ]


def test_unsaturable_links_leave_the_sharing_and_are_still_counted():
    trace = step({"pp": 2, "dp": 64, "tp": 8})
    topology = load("fattree", ranks=1024)
    assert "leaf-spine" in {link.level for link in replay(trace, topology, closed_form=False).links}
    kept = replay(trace, topology, closed_form=False, drop_unsaturable=False)
    dropped = replay(trace, topology, closed_form=False)
    assert dropped.folding.link_classes < kept.folding.link_classes


def test_an_oversubscribed_tier_is_never_dropped():
    """Two leaves, four to one: the uplinks bind, and dropping them would show."""
    trace = step({"pp": 2, "dp": 64, "tp": 8}, [("dp", "all_to_all", 64 * MB)])
    topology = load("fattree", ranks=1024, overrides={"spine.oversubscription": "4"})
    reference = replay(trace, topology, drop_unsaturable=False, closed_form=False)
    found = same(trace, topology, reference, closed_form=False)
    free = replay(trace, load("fattree", ranks=1024))
    assert found.step_seconds > free.step_seconds * 1.1


@pytest.mark.parametrize("fabric", ["fattree", "fiber", "torus"])
@given(
    slow=st.dictionaries(st.integers(0, 31), st.sampled_from([1.1, 2.0]), max_size=2),
    degraded=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0.25, 0.5]), st.booleans()), max_size=2),
    seed=st.integers(0, 3),
)
@settings(max_examples=10, deadline=None)
def test_folding_stays_exact_under_perturbation(fabric, slow, degraded, seed):
    trace = step({"pp": 2, "dp": 4, "tp": 4})
    topology = load(fabric, ranks=32)
    changes = [
        LinkChange(np.array([link % topology.links]), factor, 1e-3 if part else 0.0, 4e-3 if part else None)
        for link, factor, part in degraded
    ]
    placement = np.random.default_rng(seed).permutation(32) if seed else None
    options = {"perturbation": Perturbation(slow, changes), "placement": placement}
    same(trace, topology, replay(trace, topology, folding=False, **options), **options)


def test_a_straggler_slows_its_own_compute(tmp_path):
    trace = job({"dp": 4}, [compute(0, 1e-3), collective(1, "all_reduce", "dp", 4 * MB, deps=[0]), wait(2, 1)])
    found = replay(trace, star(tmp_path, 4), perturbation=Perturbation({2: 3.0}))
    assert spans(found, 2)[0][2] == pytest.approx(3e-3)
    assert spans(found, 0)[0][2] == pytest.approx(1e-3)
    assert class_of(found, 2) != class_of(found, 0)


def test_a_link_degraded_for_a_while(tmp_path):
    """4 MB each way between two at 1 GB/s take 4 ms; at half speed from 1 ms to 3 ms, one millisecond more."""
    topology = star(tmp_path, 2)
    change = LinkChange(np.flatnonzero(topology.link_src == 0), 0.5, 1e-3, 3e-3)
    trace = job({"dp": 2}, [collective(0, "all_reduce", "dp", 4 * MB)])
    found = replay(trace, topology, perturbation=Perturbation(changes=[change]))
    assert found.step_seconds == pytest.approx(5e-3)
    assert found.links[0].utilisation == pytest.approx(1.0)


@pytest.mark.parametrize("change", [(0.5, 0.0, None), (0.25, 1e-3, 3e-3)])
def test_a_degraded_link_is_never_used_beyond_what_it_had(change):
    """Folded or not, the loads are the same, and none is above the capacity that the link had over the step."""
    trace = step({"pp": 2, "dp": 8, "tp": 4})
    topology = load("fattree", ranks=trace.world_size)
    reference = replay(trace, topology, folding=False)
    busiest = next(link for link in reference.links if link.bytes)
    number = next(i for i in range(topology.links) if topology.link_name(i) == busiest.link)
    options = {"perturbation": Perturbation(changes=[LinkChange(np.array([number]), *change)])}
    whole = replay(trace, topology, folding=False, **options)
    folded = same(trace, topology, whole, **options)
    for found in (whole, folded):
        assert all(link.utilisation <= 1 + 1e-9 for link in found.links)
        (slow,) = (link for link in found.links if link.count == 1 and link.link == busiest.link)
        mean = busiest.capacity_bytes_per_second
        if change[2] is None:
            assert slow.capacity_bytes_per_second == pytest.approx(mean * 0.5)
        else:
            lost = (1 - change[0]) * (change[2] - change[1]) / found.step_seconds
            assert slow.capacity_bytes_per_second == pytest.approx(mean * (1 - lost))


@pytest.mark.parametrize("text", ["x:2", "3", "3:", "3:0", "3:-1", "3:nan", ":2"])
def test_bad_stragglers(text):
    with pytest.raises(InputError, match="--straggler"):
        parse_straggler(text)


@pytest.mark.parametrize(
    "text", ["gpu0-nowhere:0.5", "gpu0", "gpu0>leaf0:0", "gpu0>leaf0:0.5@soon", "gpu0>leaf0:0.5@3ms-1ms"]
)
def test_bad_degradations(text):
    with pytest.raises(InputError):
        parse_degrade(text, load("fattree", ranks=16))


def test_a_degradation_is_read_with_its_window():
    change = parse_degrade("gpu0>leaf0:0.5@1ms-2ms", load("fattree", ranks=16))
    assert (len(change.links), change.factor, change.start, change.end) == (1, 0.5, 1e-3, 2e-3)
