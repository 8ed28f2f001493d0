"""Folding is exact: folded and whole runs give every rank the same completion times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network.fluid import Network
from emulator.replay import fold as fold_module
from emulator.replay.fold import fold
from emulator.replay.groups import build_groups
from emulator.replay.plans import Planner
from emulator.replay.tables import build_tables
from emulator.replay.variants import build_variants
from emulator.topology.load import load
from emulator.trace.check import faults
from emulator.trace.expand import rows, templates
from emulator.trace.schema import BlockUse, PerRank
from tests.jobs import class_of, collective, compute, job, recv, replay, send, wait

FABRICS = ["fattree", "torus", "fiber"]
MB = 10**6


def ends(found, world):
    """Completion time of every op of every rank, shape (world, ops)."""
    table = {}
    for line in found.timeline:
        table.setdefault(line.rank_class, []).append(np.stack([line.op, line.end], axis=1))
    of_class = {c: np.concatenate(parts) for c, parts in table.items()}
    of_class = {c: part[np.argsort(part[:, 0]), 1] for c, part in of_class.items()}
    return [of_class[class_of(found, rank)] for rank in range(world)]


def assert_same(trace, topology):
    assert not list(faults(trace))
    folded, whole = replay(trace, topology), replay(trace, topology, folding=False)
    assert whole.folding.rank_classes == trace.world_size
    for a, b in zip(ends(folded, trace.world_size), ends(whole, trace.world_size), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-15)
    return folded


def training_step(axes, sizes, stages, layers, seconds):
    """Layers of compute with collectives on every axis but `pp`, activations sent along `pp`; one program per stage."""
    programs = []
    for stage in range(stages):
        ops = []
        if stage:
            ops += [recv(900, {"pp": -1}, 3 * MB), wait(901, 900)]
        body = [compute(0, seconds)]
        for i, (axis, kind, size) in enumerate(sizes):
            body += [
                collective(2 * i + 1, kind, axis, size, stream=axis, deps=[2 * i]),
                wait(2 * i + 2, 2 * i + 1) if i % 2 else compute(2 * i + 2, seconds / 3),
            ]
        body.append(wait(99, *([[1, 1]] if sizes else [])))
        ops.append(BlockUse("layer", layers))
        if stage < stages - 1:
            ops += [wait(902, [0, 99, "layer"]), send(903, {"pp": 1}, 3 * MB, deps=[902])]
        programs.append(ops)
    return job(axes, *programs, ranks=stage_ranks(axes, stages), blocks={"layer": body})


def stage_ranks(axes, stages):
    return [(int(np.prod(list(axes.values()))) // stages, p) for p in range(stages)]


@st.composite
def jobs(draw):
    stages = draw(st.sampled_from([1, 2]))
    dp, tp = draw(st.sampled_from([(4, 4), (8, 2), (2, 8), (4, 2)]))
    axes = {"pp": stages, "dp": dp, "tp": tp}
    kinds = st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"])
    amounts = st.sampled_from([MB // 50, 4 * MB, 32 * MB])
    sizes = draw(st.lists(st.tuples(st.sampled_from(["dp", "tp"]), kinds, amounts), max_size=3))
    sizes = [(axis, kind, size // 64 * 64) for axis, kind, size in sizes]
    seconds = draw(st.sampled_from([1e-4, 1e-3]))
    if draw(st.booleans()):
        straggler = draw(st.integers(0, dp - 1))
        seconds_of = PerRank(["dp"], [seconds * (1.5 if i == straggler else 1.0) for i in range(dp)])
    else:
        seconds_of = seconds
    trace = training_step(axes, sizes, stages, draw(st.integers(1, 3)), seconds)
    for op in trace.blocks["layer"]:
        if op.kind == "compute":
            op.duration = seconds_of
    return trace


@pytest.mark.parametrize("fabric", FABRICS)
@given(trace=jobs())
@settings(max_examples=15, deadline=None)
def test_folded_equals_whole(fabric, trace):
    assert_same(trace, load(fabric, ranks=trace.world_size))


@pytest.mark.parametrize("fabric", FABRICS)
def test_folded_equals_whole_with_a_degraded_link(fabric):
    trace = training_step(
        {"pp": 2, "dp": 4, "tp": 4}, [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 64 * MB)], 2, 2, 1e-3
    )
    topology = load(fabric, ranks=32)
    used = topology.route(np.array([0]), np.array([4])).link[:1]
    plain = assert_same(trace, topology)
    degraded = assert_same(trace, topology.with_capacity(used, 0.25))
    assert degraded.step_seconds > plain.step_seconds
    assert degraded.folding.rank_classes > plain.folding.rank_classes


def test_folding_folds():
    trace = training_step(
        {"pp": 2, "dp": 8, "tp": 8}, [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 64 * MB)], 2, 2, 1e-3
    )
    found = replay(trace, load("fattree", ranks=128))
    assert found.folding.rank_classes == 2
    assert found.folding.op_executions_represented == 64 * found.folding.op_executions


def full_tables(trace, topology):
    ops = templates(trace).ops
    unrolled = [rows(trace, p) for p in range(len(trace.programs))]
    variants = build_variants(trace, unrolled, ops, [op.duration or 0.0 for op in ops])
    planner = Planner(trace, ops, variants, topology, {}, np.arange(trace.world_size), frozenset(), {})
    return build_tables(variants, build_groups(trace, variants, planner), topology)


def test_a_hidden_asymmetry_is_caught(monkeypatch):
    """Negative control: a degraded link that the colours do not see. The check of the partition refuses to fold it."""
    trace = training_step({"dp": 8, "tp": 8}, [("dp", "all_reduce", 64 * MB)], 1, 2, 1e-3)
    topology = load("fattree", ranks=64)
    tables = full_tables(trace, topology)
    blind = fold(tables)
    assert len(blind.tables.node_variant) == 1
    weights = tables.phase_weight.copy()
    weights[0] *= 3  # one flow takes three times its share of one link
    crooked = replace(tables, phase_weight=weights)
    assert len(fold(crooked).tables.node_variant) > 1
    monkeypatch.setattr(fold_module, "_refine", lambda _: (blind.node_class, blind.group_class, blind.link_class, 1))
    assert len(fold(crooked).tables.node_variant) == 64  # not equitable: nothing is folded


def test_a_wrong_fold_would_show(monkeypatch):
    """The comparison itself can fail: forced to fold a degraded job into the classes of the sound one, times differ."""
    trace = training_step({"dp": 8, "tp": 8}, [("dp", "all_reduce", 64 * MB)], 1, 2, 1e-3)
    topology = load("fattree", ranks=64)
    sound = fold(full_tables(trace, topology))
    degraded = topology.with_capacity(topology.route(np.array([9]), np.array([17])).link[:1], 0.25)
    monkeypatch.setattr(fold_module, "_refine", lambda _: (sound.node_class, sound.group_class, sound.link_class, 1))
    monkeypatch.setattr(fold_module, "_equitable", lambda *_: True)
    forced = replay(trace, degraded)
    monkeypatch.undo()
    assert forced.step_seconds < replay(trace, degraded, folding=False).step_seconds * 0.9


def test_two_runs_agree_but_for_the_engine_figures():
    trace = training_step({"dp": 4, "tp": 4}, [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 4 * MB)], 1, 2, 1e-3)
    topology = load("torus", ranks=16)
    first, second = replay(trace, topology), replay(trace, topology)
    assert first.collectives == second.collectives
    assert first.links == second.links
    for a, b in zip(first.timeline, second.timeline, strict=True):
        assert np.array_equal(a.end, b.end)


def test_private_routes_change_nothing(monkeypatch):
    """A plain timeout for routes that nobody shares gives what the fluid network gives."""
    trace = training_step({"dp": 4, "tp": 4}, [("tp", "all_gather", 32 * MB), ("dp", "all_reduce", 4 * MB)], 1, 2, 1e-3)
    topology = load("fattree", ranks=16)
    short = replay(trace, topology)
    started = []
    original = Network.start
    monkeypatch.setattr("emulator.replay.engine.mark_private", lambda *_, **__: None)
    monkeypatch.setattr(Network, "start", lambda *args: (started.append(1), original(*args))[1])
    long = replay(trace, topology)
    assert started
    for a, b in zip(short.timeline, long.timeline, strict=True):
        np.testing.assert_allclose(a.end, b.end, rtol=1e-9)
