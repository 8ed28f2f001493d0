"""What sharing links costs a transfer, and whom: own rank's other streams, other ranks, slower links.

Times are worked out by hand beside the cases (1 GB/s, sizes in MB: 1 MB = 1 ms).
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.network.clock import Clock
from emulator.network.fluid import Network
from emulator.network.sharing import Place
from emulator.replay.perturb import LinkChange, Perturbation
from emulator.report.hints import hints
from emulator.report.network_use import collectives
from emulator.topology.explicit import NodeLink, from_node_link
from emulator.topology.spec import decode_quantity
from emulator.trace.schema import Group
from tests.jobs import class_of, collective, compute, job, recv, replay, send, star
from tests.made_results import fsdp_result
from tests.test_fold import jobs
from tests.test_fold_fabrics import FABRICS, HASHED, fabric

MS = 1e-3
MB = 10**6
PARTS = ("own_rank_seconds", "other_ranks_seconds", "slower_links_seconds")


def two_leaves():
    """Accelerators 0 and 1 on one switch, 2, 3 and 4 on another, and one cable between the switches."""
    leaves = {"s0": ["g0", "g1"], "s1": ["g2", "g3", "g4"]}
    nodes = [{"id": name, "kind": "accel"} for members in leaves.values() for name in members]
    cables = [(name, leaf) for leaf, members in leaves.items() for name in members] + [("s0", "s1")]
    links = [{"source": a, "target": b, "bandwidth": 1e9, "latency": 0.0} for a, b in cables]
    graph = {"directed": False, "multigraph": True, "graph": {"name": "two leaves"}, "links": links,
             "nodes": nodes + [{"id": leaf, "kind": "switch"} for leaf in leaves]}  # fmt: skip
    return from_node_link(msgspec.convert(graph, NodeLink, dec_hook=decode_quantity))


def messages(pairs, delay=None):
    """A job of lone messages ``(source, target, MB)``, each on a stream of its own, all at once; the sends of rank
    ``delay`` leave at 1 ms."""
    programs = [[] for _ in range(5)]
    for tag, (source, target, size) in enumerate(pairs):
        deps = []
        if source == delay:
            programs[source].append(compute(100 + tag, 1 * MS))
            deps = [100 + tag]
        programs[source].append(send(tag, target, size * MB, stream=f"out{tag}", deps=deps, tag=tag))
        programs[target].append(recv(tag, source, size * MB, stream=f"in{tag}", tag=tag))
    return job({"world": 5}, *programs)


def uses(found, rank):
    """What a rank communicated, in order."""
    return [use for use in found.collectives if use.rank_class == class_of(found, rank)]


def lost(found, rank, kind="send"):
    """Of each kind of message of a rank: time, time alone, and what the difference is lost to, ms."""
    names = ("seconds", "alone_seconds", *PARTS)
    return [
        [pytest.approx(1e3 * getattr(use, name), rel=1e-9, abs=1e-12) for name in names]
        for use in uses(found, rank)
        if use.collective == kind
    ]


def test_two_streams_of_one_rank_on_one_card(tmp_path):
    """0 sends 2 MB to 1 and to 2: each gets half of its card, 4 ms for 2."""
    found = replay(messages([(0, 1, 2), (0, 2, 2)]), star(tmp_path, 5))
    assert lost(found, 0) == [[4, 2, 2, 0, 0]] * 2
    assert lost(found, 1, "recv") == [[4, 2, 2, 0, 0]]


def test_two_ranks_over_one_uplink():
    """0 sends 2 MB to 2, 1 sends 2 MB to 3: the cable between the leaves is half of what they want."""
    found = replay(messages([(0, 2, 2), (1, 3, 2)]), two_leaves())
    assert lost(found, 0) == lost(found, 1) == [[4, 2, 0, 2, 0]]
    assert lost(found, 3, "recv") == [[4, 2, 0, 2, 0]]


def test_who_shares_is_split_as_the_bytes_are():
    """Three of 1 MB over the uplink, two of them from 0: a third each, 3 ms for 1. Of what the others move, half is 0's
    own for each of its two; for 1 all is another's."""
    found = replay(messages([(0, 2, 1), (0, 3, 1), (1, 4, 1)]), two_leaves())
    assert lost(found, 0) == [[3, 1, 1, 1, 0]] * 2
    assert lost(found, 1) == [[3, 1, 0, 2, 0]]


def test_only_bottlenecks_count():
    """0 to 2, 0 to 1 and three from 1 to others: the uplink gives each of its four 1/4, so that 0's other message takes
    the rest of 0's card. It has more than 0 to 2, whose bottleneck is the uplink alone: that loses nothing to it."""
    found = replay(messages([(0, 2, 1), (0, 1, 3), (1, 3, 1), (1, 3, 1), (1, 4, 1)]), two_leaves())
    assert lost(found, 0) == [[4, 1, 0, 3, 0], [4, 3, 1, 0, 0]]


def test_a_loss_lasts_as_long_as_the_sharing():
    """3 MB from 0 are alone for 1 ms, then share with 1 MB from 1 until 3 ms, then the last MB is alone again."""
    found = replay(messages([(0, 2, 3), (1, 3, 1)], delay=1), two_leaves())
    assert lost(found, 0) == [[4, 3, 0, 1, 0]]
    assert lost(found, 1) == [[2, 1, 0, 1, 0]]


def test_members_of_a_group_are_kin_of_its_other_streams(tmp_path):
    """A ring of 2 moves 2 MB each way. Rank 1 also sends 2 MB to 2: their link of half speed makes the ring 4 ms, for
    rank 0 as well."""
    ring = collective(0, "all_gather", "ring", 4 * MB)
    programs = [[ring], [ring, send(1, 2, 2 * MB)], [recv(1, 1, 2 * MB)]]
    found = replay(job({"world": 3}, *programs, groups={"ring": Group(ranks=[[0, 1], [2]])}), star(tmp_path, 3))
    assert lost(found, 0, "all_gather") == lost(found, 1, "all_gather") == [[4, 2, 2, 0, 0]]


@pytest.mark.parametrize(("pairs", "expected"), [
    ([(0, 1, 1)], [[2, 1, 0, 0, 1]]),
    ([(0, 1, 1), (0, 2, 1)], [[4, 1, 1, 0, 2]] * 2),  # a quarter of the speed each, half of it due to the card
])  # fmt: skip
def test_a_slower_link_is_told_from_sharing(tmp_path, pairs, expected):
    topology = star(tmp_path, 5)
    slow = Perturbation(changes=[LinkChange(topology.route(np.array([0]), np.array([1])).link[:1], 0.5)])
    assert lost(replay(messages(pairs), topology, perturbation=slow), 0) == expected


def test_alone_nothing_is_lost(tmp_path):
    found = replay(messages([(0, 1, 2), (2, 3, 1)]), star(tmp_path, 5))
    assert lost(found, 0) == [[2, 2, 0, 0, 0]] and lost(found, 2) == [[1, 1, 0, 0, 0]]


def assert_exact(trace, topology, **options):
    """The parts add up, and are the same for every rank, folded or not."""
    folded, whole = (replay(trace, topology, folding=on, **options) for on in (True, False))
    for rank in range(trace.world_size):
        for one, other in zip(uses(folded, rank), uses(whole, rank), strict=True):
            tolerance = 1e-9 * other.seconds + 1e-15
            assert sum(getattr(other, part) for part in PARTS) == pytest.approx(
                other.seconds - other.alone_seconds, rel=0, abs=tolerance
            )
            assert min(getattr(other, part) for part in PARTS) >= 0
            for name in ("alone_seconds", *PARTS):
                assert getattr(one, name) == pytest.approx(getattr(other, name), rel=0, abs=tolerance)


@pytest.mark.parametrize("name", [*FABRICS, *HASHED])
@given(trace=jobs())
@settings(max_examples=4, deadline=None)
def test_the_parts_add_up_folded_or_not(name, trace):
    assert_exact(trace, fabric(name, trace.world_size))


@given(trace=jobs(), seed=st.integers(0, 2**31), until=st.sampled_from([5e-3, None]))
@settings(max_examples=10, deadline=None)
def test_the_parts_add_up_on_links_that_change(trace, seed, until):
    topology = fabric("rails with pxn", trace.world_size)
    random = np.random.default_rng(seed)
    changes = [LinkChange(random.choice(topology.links, 3, replace=False), 0.3, 0.0, until)]
    assert_exact(trace, topology, perturbation=Perturbation(changes=changes))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True), st.integers(1, 9),
                       st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=8),
)  # fmt: skip
@settings(deadline=None)
def test_what_flows_lose_is_their_time_less_their_time_alone(flows):
    """Flows of any routes, sizes, starts; those with the same owner are kin."""

    class Owners:
        def places(self, route, link):
            on = [other for other in network.routes if link in other.links and owner[other.index] == owner[route.index]]
            return [Place(1.0, tuple((other.index, 1.0) for other in on))]

    clock = Clock()
    network = Network(clock, [1.0, 2.0, 3.0, 4.0])
    routes = [network.route(links, [1.0] * len(links), who) for links, _, _, who in flows]
    owner = {route.index: flow[3] for route, flow in zip(routes, flows, strict=True)}
    network.keep_accounts(Owners())
    taken = {}
    for i, (route, (_, size, at, _)) in enumerate(zip(routes, flows, strict=True)):
        done = lambda i=i, at=at: taken.__setitem__(i, clock.now - at)  # noqa: E731
        clock.call_at(at, lambda _, r=route, s=size, d=done, i=i: network.start(r, s, d, i))
    clock.run()
    for i, (route, (_, size, _, _)) in enumerate(zip(routes, flows, strict=True)):
        parts = network.lost.get(i, [0.0, 0.0, 0.0])
        assert sum(parts) == pytest.approx(taken[i] - size / route.rate_full, abs=1e-9 * taken[i])
        assert min(parts) >= 0 and parts[2] == 0
        if len({flow[3] for flow in flows}) == 1:
            assert parts[1] == pytest.approx(0, abs=1e-9 * taken[i])  # all are kin


def congested(**parts):
    made = fsdp_result()
    use = msgspec.structs.replace(made.collectives[0], seconds=2e-3, alone_seconds=1e-3, congestion=0.5, **parts)
    return msgspec.structs.replace(made, collectives=[use])


def shown(made):
    table = collectives(made, 200).renderables[1]
    return {str(column.header): next(iter(column.cells)).plain for column in table.columns}


def test_the_report_shows_the_parts_that_there_are():
    columns = shown(congested(own_rank_seconds=0.8e-3, other_ranks_seconds=0.2e-3))
    assert columns["congestion\n% of time"] == "50.0 %"
    assert columns["own rank's\nstreams"] == "40.0 %" and columns["other\nranks"] == "10.0 %"
    assert "slower\nlinks" not in columns
    assert "other\nranks" not in shown(fsdp_result())


def test_the_hint_names_what_cost_most():
    texts = {hint.rule: hint.text for hint in hints(congested(own_rank_seconds=0.2e-3, other_ranks_seconds=0.8e-3))}
    assert texts["congestion"].endswith("links are shared (50.0 % of the time, 40.0 % to other ranks)")
