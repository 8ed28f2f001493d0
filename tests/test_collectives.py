"""Collective algorithms: the steps compute the right result, and phases are their sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.network import collectives
from emulator.network.collectives import tree

SIZES = range(1, 10)
ALL_SWITCHES = ("nvls", "sharp")


def two_levels(n):
    """Ways to spread n members evenly over servers, in a row and interleaved."""
    for k in range(2, n):
        if n % k == 0:
            yield np.repeat(np.arange(k), n // k)
            yield np.tile(np.arange(k)[::-1], n // k)


def grids(n):
    """Ways to put n members on a torus or mesh of up to three axes, members in a shuffled order."""
    at = np.random.default_rng(n).permutation(n)
    shapes = {(n,), *((k, n // k) for k in range(2, n) if n % k == 0)} | ({(2, 2, 2)} if n == 8 else set())
    for shape in sorted(shapes) if n > 1 else ():
        for closed in (True, False):
            yield collectives.Grid(at.reshape(shape), tuple(closed and length > 2 for length in shape))


def cases():
    for collective in collectives.COLLECTIVES:
        for n in SIZES if collective != "send" else (1, 2):
            rooted = collective in ("broadcast", "reduce", "gather", "scatter")
            for root in range(n) if rooted else (0,):
                for algorithm in collectives.algorithms(collective, n, switches=ALL_SWITCHES, every=True):
                    yield collective, algorithm, n, {"root": root}
            for domains in two_levels(n):
                for algorithm in collectives.algorithms(collective, n, domains, switches=ALL_SWITCHES, every=True):
                    yield collective, algorithm, n, {"root": n // 2 if rooted else 0, "domains": domains}
            if "multi_ring" in collectives.algorithms(collective, 2, grid=next(grids(2))):
                for grid in grids(n):
                    yield collective, "multi_ring", n, {"grid": grid}


def uneven_cases():
    rng = np.random.default_rng(3)
    for n in SIZES:
        splits = rng.integers(0, 4, (n, n)) * rng.integers(0, 2, (n, n)) * 8.0
        for algorithm in collectives.algorithms("all_to_all", n, splits=splits, every=True):
            yield "all_to_all", algorithm, n, {"splits": splits}
        for domains in two_levels(n):
            for algorithm in ("two_hop", "two_hop_combine"):
                yield "all_to_all", algorithm, n, {"splits": splits, "domains": domains}
        for collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
            for algorithm in collectives.algorithms(collective, n, splits=splits[0]):
                yield collective, algorithm, n, {"splits": splits[0] + 1.0}
    uneven = np.array([5, 5, 2, 5, 2, 2, 2])  # rings and trees go server by server
    for collective, algorithm in [
        ("all_reduce", "ring"), ("all_reduce", "tree"), ("all_gather", "ring"), ("reduce_scatter", "ring"),
        ("broadcast", "ring"), ("reduce", "binomial"),
    ]:  # fmt: skip
        yield collective, algorithm, 7, {"domains": uneven, "root": 3 * (collective in ("broadcast", "reduce"))}


CASES = [*cases(), *uneven_cases()]
IDS = [f"{c}-{a}-{n}-{i}" for i, (c, a, n, _) in enumerate(CASES)]


def execute(steps, before, sizes, rng):
    """Run steps on integer data; returns contributions, final slots. Sending what one does not have is an error."""
    n, count = before.shape
    contributed = {(m, c): rng.integers(-1000, 1000, sizes[c]) for m in range(n) for c in range(count) if before[m, c]}
    slot = dict(contributed)
    for step in steps:
        sent = [slot[m, c].copy() for m, c in zip(step.src.tolist(), step.chunk.tolist(), strict=True)]
        for member, chunk, data in zip(step.dst.tolist(), step.chunk.tolist(), sent, strict=True):
            slot[member, chunk] = slot[member, chunk] + data if step.reduce else data
    return contributed, slot


@pytest.mark.parametrize(("collective", "algorithm", "n", "options"), CASES, ids=IDS)
def test_steps_compute_the_collective(collective, algorithm, n, options):
    fractions = collectives.chunks(collective, algorithm, n, **options)
    elements = (7 * n + 3 if collective != "all_to_all" else 4 * n) * max(1, len(fractions) // 40)  # unequal, some none
    sizes = collectives.chunk_elements(fractions, elements)
    before, after = collectives.holdings(collective, n, len(fractions), root=options.get("root", 0))
    steps = collectives.steps(collective, algorithm, n, **options)
    contributed, slot = execute(steps, before, sizes, np.random.default_rng(n))
    for member, chunk in np.argwhere(after).tolist():
        if sizes[chunk]:  # parts without bytes are not sent
            expected = sum(data for (_, c), data in contributed.items() if c == chunk)
            np.testing.assert_array_equal(slot[member, chunk], expected)


@pytest.mark.parametrize(("collective", "algorithm", "n", "options"), CASES, ids=IDS)
def test_phases_move_the_bytes_of_the_steps(collective, algorithm, n, options):
    fractions = collectives.chunks(collective, algorithm, n, **options)
    by_steps, by_phases = np.zeros((n, n)), np.zeros((n, n))
    for step in collectives.steps(collective, algorithm, n, **options):
        assert np.all(step.src != step.dst)
        np.add.at(by_steps, (step.src, step.dst), fractions[step.chunk])
    if collectives.switches_for(collective, algorithm):
        return  # switches add up and copy: fewer bytes than the arithmetic's messages (test_collectives_time.py)
    for phase in collectives.phases(collective, algorithm, n, **options):
        np.add.at(by_phases, (phase.src, phase.dst), phase.fraction)
    np.testing.assert_allclose(by_phases, by_steps, rtol=1e-12, atol=1e-15)


def test_mutations_are_seen():
    """The executor itself: a chunk lost, sent twice or to the wrong member does not pass."""
    before, after = collectives.holdings("reduce_scatter", 4, 4)
    sizes = np.full(4, 2)

    def right(mutate):
        steps = list(collectives.steps("reduce_scatter", "ring", 4))
        mutate(steps)
        contributed, slot = execute(steps, before, sizes, np.random.default_rng(0))
        return all(
            np.array_equal(slot[m, c], sum(data for (_, k), data in contributed.items() if k == c))
            for m, c in np.argwhere(after).tolist()
        )

    assert right(lambda steps: None)
    assert not right(lambda steps: steps.pop())
    assert not right(lambda steps: steps.insert(1, steps[1]))
    assert not right(lambda steps: steps.__setitem__(0, collectives.Step(*[steps[0].dst] * 2, steps[0].chunk, True)))


@pytest.mark.parametrize("collective", collectives.COLLECTIVES)
def test_group_of_one_has_nothing_to_do(collective):
    for algorithm in collectives.algorithms(collective, 1):
        assert collectives.phases(collective, algorithm, 1) == ()
        assert list(collectives.steps(collective, algorithm, 1)) == []


@pytest.mark.parametrize("n", SIZES)
def test_barrier_hears_of_everyone(n):
    heard = np.eye(n, dtype=bool)
    for step in collectives.steps("barrier", "dissemination", n):
        heard[step.dst] |= heard[step.src]
    assert heard.all()


def test_bytes_on_the_wire_follow_the_bus_factor():
    """nccl-tests' factors are bytes sent per member over S for bandwidth-optimal algorithms."""
    for n in (2, 3, 8):
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            for algorithm in collectives.algorithms(collective, n):
                if algorithm == "recursive_doubling" or (algorithm == "halving_doubling" and n == 3):
                    continue  # few messages instead of few bytes
                sent = sum(phase.fraction.sum() for phase in collectives.phases(collective, algorithm, n)) / n
                assert sent == pytest.approx(collectives.bus_factor(collective, n)), algorithm
    assert collectives.bus_factor("broadcast", 8) == 1.0


def test_rings_of_65536_members_are_symbolic():
    (phase,) = collectives.phases("all_reduce", "ring", 65_536)
    assert phase.src.size == 65_536
    domains = np.arange(65_536) // 8
    inside, across, _ = collectives.phases("all_reduce", "hierarchical", 65_536, domains=domains)
    assert inside.ring == 8
    assert across.ring == 8192


def test_large_groups_are_symbolic():
    """No algorithm lists pairs or chunks of 16,384 members but those that cannot do without."""
    n = 16_384
    domains, grid = np.arange(n) // 8, collectives.Grid(np.arange(n).reshape(16, 32, 32), (True,) * 3)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for algorithm in collectives.algorithms(collective, n, domains, grid, switches=ALL_SWITCHES):
            found = collectives.phases(collective, algorithm, n, domains=domains, grid=grid)
            assert 1 <= len(found) <= 30, algorithm


def test_all_pairs_have_a_limit():
    assert "direct" not in collectives.algorithms("all_reduce", 129)
    assert "direct" in collectives.algorithms("all_reduce", 129, every=True)
    assert "pairwise" not in collectives.algorithms("all_to_all", 129)
    (exchange,) = collectives.phases("all_to_all", "direct", 65_536)
    assert exchange.each == 1 / 65_536
    with pytest.raises(InputError, match="too large"):
        len(exchange.src)
    with pytest.raises(InputError, match="too large"):
        collectives.phases("all_to_all", "pairwise", 65_536)


@given(st.integers(1, 12), st.data())
@settings(max_examples=40, deadline=None)
def test_rings_visit_server_by_server(n, data):
    domains = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    sizes = [domains.count(d) for d in set(domains)]
    channels = min(sizes) if 1 < len(sizes) < n else 1
    crossings = sum(
        int(domains[a] != domains[b])
        for phase in collectives.phases("all_gather", "ring", n, domains=domains)
        for a, b in zip(phase.src.tolist(), phase.dst.tolist(), strict=True)
    )
    assert crossings == (channels * len(sizes) if len(sizes) > 1 else 0)


def test_every_card_carries_its_part_of_the_rings():
    """Four servers of three: each member leaves and enters its server in one ring, on the rail of its place."""
    domains = np.repeat(np.arange(4), 3)
    (phase,) = collectives.phases("all_reduce", "ring", 12, domains=domains)
    crosses = domains[phase.src] != domains[phase.dst]
    assert sorted(phase.src[crosses].tolist()) == sorted(phase.dst[crosses].tolist()) == list(range(12))
    assert np.all(phase.src[crosses] % 3 == phase.dst[crosses] % 3)


@pytest.mark.parametrize("k", range(1, 40))
def test_the_two_binary_trees_share_no_inner_member(k):
    """Sanders et al. 2009: who has children in one tree is a leaf of the other (the root of each apart)."""
    first, second = tree.binary_pair(k)
    for parent in (first, second):
        assert np.count_nonzero(parent < 0) == 1
        depth = tree.depths(parent)
        assert depth.max() <= max(k - 1, 0).bit_length()
        assert np.bincount(parent[parent >= 0], minlength=k).max() <= 2
    children = [np.bincount(parent[parent >= 0], minlength=k) for parent in (first, second)]
    assert np.all((children[0] == 0) | (children[1] == 0) | (children[0] + children[1] <= 3))
    assert np.all(children[0] + children[1] + (first >= 0) + (second >= 0) <= 4)


@given(st.integers(1, 40), st.integers(0, 1000))
def test_chunks_differ_by_one_element_at_most(count, elements):
    sizes = collectives.chunk_elements(np.full(count, 1 / count), elements)
    assert sizes.sum() == elements
    assert sizes.max() - sizes.min() <= 1


def test_hierarchical_is_offered_for_even_servers_only():
    offered = {
        (0, 0, 1, 1): True,
        (0, 1, 0, 1): True,
        (0, 0, 0, 1): False,
        (0, 0, 0, 0): False,
        (0, 1, 2, 3): False,
    }
    for domains, expected in offered.items():
        assert ("hierarchical" in collectives.algorithms("all_reduce", 4, domains)) is expected
        if not expected:
            with pytest.raises(InputError, match="hierarchical needs"):
                collectives.phases("all_reduce", "hierarchical", 4, domains=domains)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: collectives.phases("all_redcue", "ring", 4), "unknown collective"),
        (lambda: collectives.phases("all_reduce", "rign", 4), "unknown algorithm"),
        (lambda: collectives.phases("broadcast", "ring", 4, root=4), "root 4"),
        (lambda: collectives.phases("all_reduce", "ring", 0), "at least one"),
        (lambda: collectives.phases("all_gather", "ring", 4, domains=[0, 1]), "2 domains"),
        (lambda: collectives.phases("all_to_all", "direct", 4, splits=np.ones((2, 2))), "splits must be 4 x 4"),
        (lambda: collectives.phases("all_to_all", "direct", 2, splits=-np.ones((2, 2))), "not negative"),
        (lambda: collectives.phases("send", "direct", 3), "two members"),
    ],
)
def test_refuses(call, reason):
    with pytest.raises(InputError, match=reason):
        call()
