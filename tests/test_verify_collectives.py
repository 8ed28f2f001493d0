"""Collective schedules executed between processes; single-process properties; refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from emulator.errors import InputError  # noqa: E402
from emulator.network import collectives  # noqa: E402
from emulator.network.collectives import Grid  # noqa: E402
from emulator.topology.load import load  # noqa: E402
from emulator.verify.collectives import plans_of, prove, verify_collective  # noqa: E402
from emulator.verify.plan import ROOTED, definition_faults, plan  # noqa: E402
from emulator.verify.schedule import exact, model  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def everything(n, **how):
    """Every algorithm for n ranks: on one server, on two, on a torus."""
    yield from plans_of("all", n=n, domains=np.zeros(n, dtype=int), **how)
    if n > 2 and n % 2 == 0:
        halves = np.arange(n) // (n // 2)
        for collective in collectives.COLLECTIVES:
            apart = set(collectives.algorithms(collective, n, halves, every=True, switches=("nvls", "sharp")))
            together = collectives.algorithms(collective, n, [0] * n, every=True, switches=("nvls", "sharp"))
            for name in sorted(apart - set(together)):
                yield from plans_of(collective, name, n, domains=halves, **how)
        grid = Grid(np.arange(n).reshape(2, n // 2), (True, True))
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            yield from plans_of(collective, "multi_ring", n, grid=grid, **how)


def assert_proved(plans, **how):
    checks = prove(list(plans), **how)
    assert [f for c in checks for f in c.findings] == []
    assert {c.name for c in checks} >= {"definition", "flows", "integers"}
    return checks


def test_every_algorithm_of_four_ranks_between_processes():
    plans = list(everything(4, sizes=[31], roots=[2]))
    assert len({(p.collective, p.algorithm) for p in plans}) >= 30
    checks = assert_proved(plans, dtypes=["int64", "float32", "bfloat16"])
    floats = [c.largest_error for c in checks if c.name == "floats"]
    assert max(floats) <= 1  # of the error bound of a sum, against gloo
    assert max(floats) > 0  # and not because nothing was compared


def test_groups_of_one_to_three_with_all_roots():
    assert_proved((p for n in (1, 2, 3) for p in everything(n)), dtypes=["int64"])


@pytest.mark.slow
@pytest.mark.parametrize("n", range(4, 10))
def test_every_algorithm_all_sizes_all_roots(n):
    assert_proved(everything(n, sizes=(n - 1, 7 * n + 3, 1000)), dtypes=["int64", "float32"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"])
def test_64_processes(algorithm):
    report = verify_collective("all_reduce", algorithm=algorithm, ranks=64, sizes=[1000], dtypes=["int64", "float32"],
                               time_limit=800)  # fmt: skip
    assert report.proved


def test_switches_are_played_by_a_process_of_their_own():
    made = {p.algorithm: p for p in plans_of("all_reduce", n=4, domains=[0] * 4, sizes=[9])}
    assert made["nvls"].players == 5
    assert made["ring"].players == 4
    assert all(4 in (*step.src.tolist(), *step.dst.tolist()) for step in made["nvls"].steps)
    sent = sum((step.src == 0).sum() for step in made["nvls"].steps)
    assert sent == 3 + 1  # the parts of the others up to be added, the own sum up to be copied


CASES = [(c, a) for c in collectives.COLLECTIVES if c not in ("barrier", "send")
         for a in collectives.algorithms(c, 9, every=True)]  # fmt: skip


@given(st.sampled_from(CASES), st.integers(1, 9), st.integers(0, 60), st.data())
@settings(max_examples=80, deadline=None)
def test_any_size_any_root_any_splits(case, n, elements, data):
    """The single-process model of the steps gives the mathematical result exactly, and keeps the promise."""
    collective, algorithm = case
    root = data.draw(st.integers(0, n - 1)) if collective in ROOTED else 0
    splits = None
    if collective == "all_to_all" and data.draw(st.booleans()):
        splits = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n * n, max_size=n * n))).reshape(n, n)
    made = plan(collective, algorithm, n, elements, root=root, splits=splits)
    assert list(definition_faults(made)) == []
    slots = model(made, "int64")
    for member, chunk in np.argwhere(made.after & (made.sizes > 0)).tolist():
        assert torch.equal(slots[member].of(chunk), exact(made, "int64", chunk)[0])


def test_floating_point_sums_come_in_the_declared_order():
    """A ring adds along the ring: the model must not add in any other order."""
    made = plan("all_reduce", "ring", 3, 3)
    from emulator.verify.schedule import contribution  # noqa: PLC0415

    x = [contribution(made, "float32", member, 0) for member in range(3)]
    result = model(made, "float32")[0].of(0)
    around = (x[1] + x[2]) + x[0]  # chunk 0 starts at rank 1 and ends at rank 0
    assert torch.equal(result, around)


def test_on_a_topology_paths_are_checked_too():
    report = verify_collective("all_to_all", ranks=4, topology=load("fattree", ranks=4), dtypes=["int64"], sizes=[8])
    assert report.proved
    assert {c.name for c in report.checks} == {"definition", "flows", "paths", "integers"}
    assert report.facts["topology"]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: verify_collective("all_redcue"), "unknown collective"),
        (lambda: verify_collective("all_reduce", algorithm="rign"), "unknown algorithm"),
        (lambda: verify_collective("send", ranks=3, sizes=[1]), "two members"),
    ],
)
def test_refuses(call, reason):
    with pytest.raises(InputError, match=reason):
        call()
