"""The choice of algorithm and protocol: NCCL's model on GPU fabrics, measured tables, the fastest elsewhere."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
import pytest
from built import build

from emulator.errors import InputError
from emulator.network import nccl
from emulator.network.choose import fastest, measured_seconds, place_all, ways
from emulator.network.layout import layout
from emulator.network.measure import measure
from emulator.topology.load import load
from emulator.topology.tuning import Measured, Tuning, read_tuning

HOPPER = Tuning(generation="hopper")
MIB, GIB = 2.0**20, 2.0**30


def chosen(fabric, n, collective, size, wanted="auto"):
    members = np.arange(n)
    way, placed = fastest(fabric, members[np.newaxis], layout(fabric, members), collective, size, wanted)
    return way.name, float(way.seconds(placed, size)[0])


def test_latency_of_a_ring_of_eight_in_one_node():
    """6.6 + 14 x 0.6 us = 15.0 us; 15.6 us were measured for 512 bytes on 8 H100 (aiconfigurator, nccl 2.29.2)."""
    assert nccl.latency(HOPPER, "all_reduce", "ring", "LL", nccl.Size(8, 1)) == pytest.approx(15.0e-6)
    assert nccl.latency(HOPPER, "all_gather", "ring", "LL", nccl.Size(8, 1)) == pytest.approx(10.8e-6)
    assert chosen(load("fattree", ranks=8), 8, "all_reduce", 512)[1] == pytest.approx(15.6e-6, rel=0.05)


def test_latencies_across_nodes():
    """The published formulas, written out for 64 GPUs in 8 nodes; a hop inside takes a network overhead at least."""
    size = nccl.Size(64, 8)
    expected = {
        ("ring", "Simple"): 8.4 + 112 * 3.4 + 14 * 14,
        ("ring", "LL"): 6.6 + 112 * 1.0 + 14 * 2.7,
        ("tree", "LL128"): 14 + 2 * (7 * 1.25 + log2(8) * 8.5),
        ("nvls_tree", "Simple"): 25 + 2 * log2(8) * 20.9,
        ("sharp", "Simple"): 2 * (3.7 + 0.4 * 7) + 31,
    }
    for (algorithm, protocol), microseconds in expected.items():
        found = nccl.latency(HOPPER, "all_reduce", algorithm, protocol, size)
        assert found == pytest.approx(microseconds * 1e-6), (algorithm, protocol)


def test_bandwidth_of_large_messages():
    """8 GiB in one node of H200 (ml-engineering): 363 GB/s with 4 GPUs by ring, 473 with 8 in the switch; B200 838."""
    for preset, n, way, published in [
        ("fattree", 4, "ring/Simple", 363.3),
        ("fattree", 8, "nvls/Simple", 473.1),
        ("hgx-b200", 8, "nvls/Simple", 838.0),
    ]:
        name, seconds = chosen(load(preset, ranks=n), n, "all_reduce", 8 * GIB)
        assert name == way
        assert 2 * (n - 1) / n * 8 * GIB / seconds == pytest.approx(published * 1e9, rel=0.08)


def test_small_messages_take_the_fast_protocol():
    fabric = load("fattree", ranks=32)
    names = [chosen(fabric, 32, "all_reduce", size)[0] for size in (1024, MIB, 16 * MIB, 8 * GIB)]
    assert names[0].endswith("/LL")
    assert names[-1].endswith("/Simple")
    assert names[0].startswith("tree")  # log2 of the nodes instead of all of them
    assert chosen(fabric, 32, "all_gather", 1024)[0] == "ring/LL"
    assert chosen(fabric, 32, "all_to_all", GIB)[0] == "direct"


def test_low_latency_protocol_is_held_by_the_gpu():
    """LL on 8 Hopper GPUs moves 141 GB/s busbw at most, below half of NVLink's 369."""
    fabric = load("fattree", ranks=8)
    _, seconds = chosen(fabric, 8, "all_reduce", GIB, "ring/LL")
    assert 1.75 * GIB / (seconds - 15e-6) == pytest.approx(141e9)


def test_an_algorithm_by_name_and_its_protocol():
    fabric = load("fattree", ranks=16)
    assert chosen(fabric, 16, "all_reduce", GIB, "tree")[0] == "tree/Simple"
    assert chosen(fabric, 16, "all_reduce", GIB, "ring/LL128")[0] == "ring/LL128"
    assert chosen(fabric, 16, "all_reduce", GIB, "hierarchical")[0] == "hierarchical"  # NCCL has none: path latencies
    with pytest.raises(InputError, match="no protocol 'Fast'"):
        chosen(fabric, 16, "all_reduce", GIB, "ring/Fast")
    with pytest.raises(InputError, match="needs switches that reduce"):
        chosen(load("torus", ranks=16), 16, "all_reduce", GIB, "nvls")
    with pytest.raises(InputError, match="nvls works within one server"):
        chosen(fabric, 16, "all_reduce", GIB, "nvls")
    with pytest.raises(InputError, match="no protocol 'LL'"):
        chosen(load("torus", ranks=16), 16, "all_reduce", GIB, "ring/LL")


def test_tuning_can_be_switched_off():
    fabric = load("fattree", ranks=8, overrides={"tuning": "none"})
    assert fabric.tuning is None
    name, seconds = chosen(fabric, 8, "all_reduce", GIB, "ring")
    assert name == "ring"
    assert seconds == pytest.approx(14 * (2 * 1.665e-6 + GIB / 8 / (450e9 * 0.82)), rel=1e-9)
    with pytest.raises(InputError, match="generation"):
        load("fattree", ranks=8, overrides={"tuning": "turing"})


def test_protocols_share_the_routing():
    fabric = load("fattree", ranks=16)
    members = np.arange(16)
    weighed = place_all(fabric, members[np.newaxis], ways(fabric, "all_reduce", layout(fabric, members), "ring"))
    assert [way.protocol for way, _ in weighed] == ["LL", "LL128", "Simple"]
    assert len({id(placed[0].link) for _, placed in weighed}) == 1


TABLE = Measured(collective="all_reduce", ranks=8, bytes=[1e6, 4e6, 1e9], seconds=[30e-6, 50e-6, 4e-3])


@pytest.mark.parametrize(
    ("size", "expected"), [(1e6, 30e-6), (4e6, 50e-6), (2e6, (30e-6 * 50e-6) ** 0.5), (1e3, 30e-6), (4e9, 16e-3)]
)
def test_a_measured_table_goes_before_the_model(size, expected):
    assert measured_seconds(TABLE, size) == pytest.approx(expected)
    fabric = load("fattree", ranks=8)
    measured = replace(fabric, tuning=Tuning(generation="hopper", measured=[TABLE]))
    assert chosen(measured, 8, "all_reduce", size)[1] == pytest.approx(expected, rel=0.1 if size < 1e6 else 1e-9)
    assert chosen(measured, 8, "all_gather", size) == chosen(fabric, 8, "all_gather", size)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("turing", "turing"),
        ({"base": {}}, "generation"),
        ({"generation": "hopper", "base": {"ring": [1e-6]}}, "length"),
        ({"generation": "hopper", "bsae": {}}, "bsae"),
        ({"generation": "hopper", "intra": {"ring": ["1 furlong", 0, 0]}}, "furlong"),
        (
            {"generation": "hopper", "measured": [{"collective": "a", "ranks": 8, "bytes": [2, 1], "seconds": [1, 1]}]},
            "rise",
        ),
    ],
)
def test_bad_tunings_are_one_line(value, reason):
    with pytest.raises(InputError, match=reason) as caught:
        read_tuning(value, "made.yaml")
    assert "\n" not in str(caught.value)


# -- measuring


def test_measure_marks_what_auto_takes():
    fabric = load("fattree", ranks=8)
    rows = measure(fabric, range(8), "all_reduce", [1024.0, GIB])
    for size, expected in ((1024.0, ("ring", "LL")), (GIB, ("nvls", "Simple"))):
        taken = [(row.algorithm, row.protocol) for row in rows if row.bytes == size and row.chosen]
        assert taken == [expected]
    for row in rows:
        assert row.algbw * row.seconds == pytest.approx(row.bytes)
        assert row.busbw == pytest.approx(row.algbw * 2 * 7 / 8)


def test_measure_by_steps_equals_phases():
    fabric = build({"node": {"kind": "switch", "size": 6, "latency": 1e-6}}, 6)
    for collective in ("all_reduce", "all_gather", "all_to_all", "broadcast", "gather", "barrier"):
        steps = {row.algorithm: row for row in measure(fabric, range(6), collective, [1e6], mode="steps")}
        phases = {row.algorithm: row for row in measure(fabric, range(6), collective, [1e6])}
        assert steps.keys() == phases.keys()
        for name in steps.keys() & {"ring", "direct", "dissemination"}:
            slack = 0.05 if (collective, name) == ("broadcast", "ring") else 1e-9  # pieces that are not infinitely thin
            assert steps[name].seconds == pytest.approx(phases[name].seconds, rel=slack), (collective, name)


def test_measure_refuses():
    fabric = load("fattree", ranks=8)
    with pytest.raises(InputError, match="no steps to play"):
        measure(fabric, range(8), "all_reduce", [1.0], algorithm="nvls", mode="steps")
    with pytest.raises(InputError, match="unknown mode"):
        measure(fabric, range(8), "all_reduce", [1.0], mode="fast")
    with pytest.raises(InputError, match="messages to play"):
        measure(build({"n": {"kind": "switch", "size": 1600}}, 1600), range(1600), "all_reduce", [1.0],
                algorithm="ring", mode="steps")  # fmt: skip


def test_one_rank_and_no_bytes_are_legal():
    fabric = load("fattree", ranks=8)
    (row, *_) = measure(fabric, [0], "all_reduce", [1e6])
    assert row.seconds == 0.0 and row.algbw is None
    (row,) = measure(fabric, range(8), "all_reduce", [0.0], algorithm="ring")
    assert row.seconds == pytest.approx(15e-6)
    assert row.algbw is None and row.busbw is None  # nothing moves: there is no bandwidth, not one of 0 B/s
