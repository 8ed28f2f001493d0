"""Collective algorithms: the steps compute the right result, and phases are their sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.network import collectives

SIZES = range(1, 10)


def two_levels(n):
    """Ways to spread n members evenly over servers, in a row and interleaved."""
    for k in range(2, n):
        if n % k == 0:
            yield np.repeat(np.arange(k), n // k)
            yield np.tile(np.arange(k)[::-1], n // k)


def cases():
    for collective in collectives.COLLECTIVES:
        for n in SIZES if collective != "send" else (1, 2):
            rooted = collective in ("broadcast", "reduce", "gather", "scatter")
            for root in range(n) if rooted else (0,):
                for algorithm in collectives.algorithms(collective, n):
                    yield collective, algorithm, n, {"root": root}
            for domains in two_levels(n):
                for algorithm in collectives.algorithms(collective, n, domains):
                    yield collective, algorithm, n, {"root": n // 2 if rooted else 0, "domains": domains}
    rng = np.random.default_rng(3)
    for n in SIZES:
        splits = rng.integers(0, 4, (n, n)) * rng.integers(0, 2, (n, n)) * 8.0
        yield "all_to_all", "direct", n, {"splits": splits}
        yield "all_to_all", "pairwise", n, {"splits": splits}
    domains = np.array([5, 5, 2, 5, 2, 2, 2])  # uneven: rings and trees go server by server
    for collective, algorithm in [("all_reduce", "ring"), ("broadcast", "ring"), ("reduce", "binomial")]:
        yield collective, algorithm, 7, {"domains": domains, "root": 3 * (collective != "all_reduce")}


CASES = list(cases())
IDS = [f"{c}-{a}-{n}-{i}" for i, (c, a, n, _) in enumerate(CASES)]


def without_domains(options):
    return {key: value for key, value in options.items() if key != "domains"}


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
    fractions = collectives.chunks(collective, algorithm, n, **without_domains(options))
    elements = 7 * n + 3 if collective != "all_to_all" else 4 * n  # chunks of unequal size, some of none
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
    fractions = collectives.chunks(collective, algorithm, n, **without_domains(options))
    by_steps, by_phases = np.zeros((n, n)), np.zeros((n, n))
    for step in collectives.steps(collective, algorithm, n, **options):
        assert np.all(step.src != step.dst)
        np.add.at(by_steps, (step.src, step.dst), fractions[step.chunk])
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
                sent = sum(phase.fraction.sum() for phase in collectives.phases(collective, algorithm, n)) / n
                assert sent == pytest.approx(collectives.bus_factor(collective, n))
    assert collectives.bus_factor("broadcast", 8) == 1.0


def test_rings_of_65536_members_are_symbolic():
    (phase,) = collectives.phases("all_reduce", "ring", 65_536)
    assert phase.src.size == 65_536
    domains = np.arange(65_536) // 8
    inside, across, _ = collectives.phases("all_reduce", "hierarchical", 65_536, domains=domains)
    assert inside.block == 8
    assert across.block == 8192


def test_all_pairs_have_a_limit():
    assert collectives.algorithms("all_reduce", 129) == ["ring"]
    assert collectives.algorithms("all_to_all", 129) == ["direct", "pairwise"]
    with pytest.raises(InputError, match="too large"):
        collectives.phases("all_to_all", "direct", 65_536)


@given(st.integers(1, 12), st.data())
@settings(max_examples=40, deadline=None)
def test_ring_visits_server_by_server(n, data):
    domains = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    crossings = sum(
        int(domains[a] != domains[b])
        for phase in collectives.phases("all_gather", "ring", n, domains=domains)
        for a, b in zip(phase.src.tolist(), phase.dst.tolist(), strict=True)
    )
    servers = len(set(domains))
    assert crossings == (servers if servers > 1 else 0)


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
