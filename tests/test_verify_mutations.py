"""It must be able to fail: every way of being wrong below is caught, and the finding says where.

``docs/verify.md`` has the table; each mutation stands in it under the name it has here.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import verify_breaks as breaks  # noqa: E402

from emulator.topology.load import load  # noqa: E402
from emulator.verify import collectives as schedules  # noqa: E402
from emulator.verify.plan import REDUCING, definition_faults, through_a_switch  # noqa: E402
from emulator.verify.report import Report  # noqa: E402
from emulator.verify.routes import flow_faults, route_faults  # noqa: E402
from emulator.verify.strategy import verify_strategy  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

TESTS = Path(__file__).parent
OWN = str(TESTS / "verify_workload.py")


def catches(_name):
    """Names what a test breaks, as the table in docs/verify.md does."""
    return lambda test: test


def finding(report: Report) -> str:
    """All findings, one a line."""
    return "\n".join(line for check in report.checks for line in check.findings)


# ---- strategies

LLAMA = ("--model", "tiny", "--layers", "1", "--fsdp", "2")
TENSOR = ("--model", "tiny", "--layers", "1", "--tp", "2")
STRATEGIES = {
    "a reduce-scatter left out": (LLAMA, breaks.drop_a_reduce_scatter, r"step 0: gradient layers.0.*rank \d.*layer 0"),
    "gradients averaged where they are summed": (LLAMA, breaks.average_instead_of_sum, r"step 0: gradient tok_"),
    "gathered shards in the wrong order": (LLAMA, breaks.swap_gathered_shards, r"step 0: loss differs"),
    "a stale parameter shard after the optimizer": (
        LLAMA, breaks.stale_shard, r"step 0: parameter \S+ differs.*(on rank 1|held by rank 1)",
    ),
    "float32 gradients reduced in bfloat16": (
        (*LLAMA, "--dtype", "float32", "--reduce-dtype", "bfloat16"), None, r"step 0: gradient",
    ),
    "tensor-parallel all-reduces left out": (
        TENSOR, breaks.skip_tensor_parallel_all_reduce, r"step 0: (loss|gradient)",
    ),
    "partial sums of a row-parallel matmul not added": (
        TENSOR, breaks.half_of_a_tensor_parallel_sum, r"step 0: loss differs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy(name: str) -> None:
    arguments, prepare, where = STRATEGIES[name]
    report = verify_strategy("workloads/llama.py", arguments, steps=1, prepare=prepare)
    assert not report.proved
    assert re.search(where, finding(report)), finding(report)


OPTIONS = {
    "wrong divisor": ("data", 3, r"step 0: gradient 0.weight differs"),
    "sum in bfloat16": ("data", 2, r"step 0: gradient"),
    "one gradient not summed": ("data", 2, r"\Astep 0: gradient 0.bias differs"),
    "same data on two ranks": ("data", 2, r"step 0: loss differs"),
    "learning rate of one rank": ("data", 2, r"\Astep 0: parameter 0.weight differs by \S+ \(allowed \S+\) on rank 1"),
    "expert on the wrong rank": ("experts", 2, r"step 0: loss differs"),
    "causal mask off by one block": ("ring", 4, r"step 0: loss differs"),
    "two microbatches swapped": ("pipeline", 2, r"step 0: loss differs"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_strategy_written_by_hand(name: str) -> None:
    kind, ranks, where = OPTIONS[name]
    report = verify_strategy(OWN, ["--kind", kind, "--ranks", str(ranks), "--break", name], steps=1)
    assert not report.proved
    assert re.search(where, finding(report)), finding(report)


# ---- collective schedules


def replaced(steps, at, **columns):
    return [dataclasses.replace(s, **columns) if i == at else s for i, s in enumerate(steps)]


def lost(steps, at):
    step = steps[at]
    return replaced(steps, at, src=step.src[1:], dst=step.dst[1:], chunk=step.chunk[1:])


def sent_twice_instead_of_another(steps, at):
    """The chunk of the first entry also takes the place of another one."""
    step = steps[at]
    other = next((e for e in range(1, len(step.chunk)) if step.chunk[e] != step.chunk[0]), None)
    if other is None:
        return None
    chunk = step.chunk.copy()
    chunk[other] = chunk[0]
    return replaced(steps, at, chunk=chunk)


def to_the_wrong_rank(steps, at):
    step = steps[at]
    dst = step.dst.copy()
    taken = {int(step.src[-1]), int(dst[-1])}
    dst[-1] = next(r for r in range(4) if r not in taken)
    return replaced(steps, at, dst=dst)


def added_twice(steps, at):
    """An entry of a reducing step comes twice; what was to be stored is added."""
    step = steps[at]
    if not step.reduce:
        return replaced(steps, at, reduce=True)
    first = np.array([0, *range(len(step.src))])
    return replaced(steps, at, src=step.src[first], dst=step.dst[first], chunk=step.chunk[first])


MUTATIONS = {
    "a chunk lost": lost,
    "a chunk sent twice in place of another": sent_twice_instead_of_another,
    "a chunk sent to the wrong rank": to_the_wrong_rank,
    "a chunk added twice": added_twice,
}


def every_schedule():
    """One plan per algorithm: 4 ranks on 2 servers where it needs servers."""
    plans = {}
    for domains in (None, np.zeros(4, dtype=int), np.array([0, 0, 1, 1])):
        for plan in schedules.plans_of("all", "", 4, domains=domains, sizes=[201], roots=[1]):
            if plan.collective != "barrier" and plan.splits is None:
                plans.setdefault((plan.collective, plan.algorithm), plan)
    return list(plans.values())


def last_step_that_counts(plan, mutate):
    """The plan broken in its last step in which breaking changes the outcome (what is overwritten later, or was there
    before, is not wrong)."""
    for at in reversed(range(len(plan.steps))):
        steps = mutate(list(plan.steps), at)
        if steps is not None:
            broken = plan.with_steps(steps)
            if list(definition_faults(broken)):
                return broken
    return None


def test_collectives() -> None:
    """Each algorithm broken in each way, all executed between processes: each is caught by the tallies and by the
    tensors, and the finding names rank and chunk."""
    broken, names = [], []
    for plan in every_schedule():
        for name, mutate in MUTATIONS.items():
            made = last_step_that_counts(plan, mutate)
            if made is not None:
                broken.append(made)
                names.append(name)
    outcomes = schedules.execute(broken, dtypes=["int64"])
    for plan, name, outcome in zip(broken, names, outcomes, strict=True):
        found = outcome["int64"].findings
        assert found, f"{plan.name}: {name}"
        assert re.search(r"(rank|switch) \d, chunk \d+: ", found[0])
    tried = {name: set() for name in MUTATIONS}
    for plan, name in zip(broken, names, strict=True):
        tried[name].add((plan.collective, plan.algorithm))
    everything = {(p.collective, p.algorithm) for p in every_schedule()}
    assert len(everything) >= 13
    assert tried["a chunk lost"] == tried["a chunk sent to the wrong rank"] == everything
    assert tried["a chunk added twice"] == {kind for kind in everything if kind[0] in REDUCING}
    assert len(tried["a chunk sent twice in place of another"]) > len(everything) / 2  # some have a single chunk


@catches("a wrong split of a router")
def test_wrong_split_of_a_router() -> None:
    """A router that sends a third here and a third there."""
    topology = load("torus", ranks=64)
    plans = list(schedules.plans_of("all_to_all", "direct", 8))
    pairs, faults = route_faults(topology, plans)
    assert (pairs, faults) == (56, [])

    class Broken:
        def __getattr__(self, name):
            return getattr(topology, name)

        def route(self, src, dst):
            routes = topology.route(src, dst)
            split = routes.share < 1
            return dataclasses.replace(routes, share=np.where(split, routes.share * 2 / 3, routes.share))

    _, faults = route_faults(Broken(), plans)
    assert faults
    assert re.search(r"\d to \d on torus: node \S+ (loses|makes) 0.333 of the flow", faults[0])


@catches("flows that are not those of the steps")
def test_flows_that_are_not_those_of_the_steps() -> None:
    plan = next(schedules.plans_of("all_gather", "ring", 4, sizes=[8]))
    assert not list(flow_faults(plan))
    steps = lost(list(plan.steps), 0)
    assert list(flow_faults(plan.with_steps(steps))) == ["0 to 1: the steps send 0.5 S, the timed flows 0.75 S"]


@catches("a switch that stores instead of adding")
def test_a_switch_that_forgets_to_add() -> None:
    plan = next(schedules.plans_of("all_reduce", "direct", 3, sizes=[6]))
    through = dataclasses.replace(plan, players=4, before=np.vstack([plan.before, [[False] * 3]]),
                                  after=np.vstack([plan.after, [[False] * 3]]))  # fmt: skip
    right = list(through_a_switch(plan.steps, 3))
    assert not list(definition_faults(through.with_steps(right)))
    wrong = [dataclasses.replace(right[0], reduce=False), *right[1:]]
    assert "lacks the contribution" in next(definition_faults(through.with_steps(wrong)))


def test_every_mutation_is_in_the_table():
    page = (TESTS.parent / "docs" / "verify.md").read_text()
    sources = "".join(path.read_text() for path in TESTS.glob("test_verify_mutations*.py"))
    names = {*STRATEGIES, *OPTIONS, *MUTATIONS, *re.findall(r'^@catches\("(.+)"\)', sources, re.MULTILINE)}
    assert len(names) >= 33
    assert [name for name in sorted(names) if f"\n| {name}" not in page] == []
