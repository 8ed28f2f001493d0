"""Memory events of recorded steps, against sums by hand."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from strategies import LAYER, D, F, T, V  # noqa: E402
from torch import nn  # noqa: E402

from emulator.api import open_job  # noqa: E402
from emulator.capture import fake  # noqa: E402
from emulator.capture.blocks import fold  # noqa: E402
from emulator.capture.merge import merge  # noqa: E402
from emulator.capture.session import Session, recording  # noqa: E402
from emulator.capture.workload import find, load  # noqa: E402
from emulator.trace import check  # noqa: E402
from emulator.trace.schema import Meta, Op, Program, Trace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(100)]

WORD = 4  # bytes of a float32


def events(ops: Iterable[Op]) -> list[tuple[str, str, int]]:
    return [(op.kind, op.category, op.bytes) for op in ops if op.kind in ("alloc", "free")]


def alive(ops: Iterable[Op]) -> list[Counter[str]]:
    """Bytes by category that the step itself has allocated and not freed, after each op."""
    now: Counter[str] = Counter()
    found = []
    for op in ops:
        if op.kind in ("alloc", "free"):
            now[op.category] += op.bytes if op.kind == "alloc" else -op.bytes
        found.append(+now)
    return found


def recorded(step: Any) -> Session:
    step()
    with recording() as session:
        step()
    return session


class Perceptron:
    """8 -> 16 -> relu -> 4 on 4 rows: 128, 64 numbers in the matrices, 64, 64, 16 in the results."""

    def __init__(self, **options: Any) -> None:
        self.model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.rows = torch.ones(4, 8)
        self.options = options

    def step(self) -> None:
        self.model(self.rows).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(**self.options)


@pytest.fixture(scope="module")
def ops() -> list[Op]:
    return recorded(Perceptron().step).ops


def test_the_forward_leaves_what_the_backward_needs(ops: list[Op]) -> None:
    first = next(i for i, op in enumerate(ops) if op.phase == "backward")
    # the relu's result (the matmul's before it is gone), the loss, and the 1 that its backward begins with
    assert alive(ops)[first - 1] == {"activation": WORD * (64 + 1 + 1)}


def test_the_peak_is_where_the_gradient_goes_through_the_relu(ops: list[Op]) -> None:
    """There are the relu's result, the gradients behind and before it, and the second matrix's."""
    peak = max(alive(ops), key=Counter.total)
    assert peak == {"activation": WORD * (3 * 64 + 1 + 1), "gradient": WORD * 64}


def test_after_the_backward_gradients_are_left_and_after_the_step_nothing(ops: list[Op]) -> None:
    optimizer = next(i for i, op in enumerate(ops) if op.phase == "optimizer")
    assert alive(ops)[optimizer] == {"gradient": WORD * (128 + 64)}
    assert alive(ops)[-1] == {}


def test_an_alloc_stands_before_its_op_and_a_free_after_the_last_use(ops: list[Op]) -> None:
    for i, op in enumerate(ops):
        touches = [k for k, other in enumerate(ops) if op.storage in {ref for ref, _ in (*other.reads, *other.writes)}]
        if op.kind == "alloc":
            assert touches[0] == i + 1
        elif op.kind == "free":
            assert touches[-1] < i


def test_what_was_there_before_is_resident_and_no_event() -> None:
    session = recorded(Perceptron().step)
    assert session.resident == {
        "activation": WORD * 32,  # the rows
        "parameter": WORD * (128 + 64),
        "optimizer": WORD * (2 * (128 + 64) + 2),  # two moments, and two counters of steps
    }


def test_gradients_that_stay_are_resident() -> None:
    session = recorded(Perceptron(set_to_none=False).step)
    assert session.resident["gradient"] == WORD * (128 + 64)
    # what is added to them comes and goes
    added = [event for event in events(session.ops) if event[1] == "gradient"]
    assert added == []
    assert alive(session.ops)[-1] == {}


def test_old_gradients_are_freed_where_the_job_lets_go_of_them() -> None:
    job = Perceptron()

    def step() -> None:
        loss = job.model(job.rows).sum()
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()

    session = recorded(step)
    assert session.resident["gradient"] == WORD * (128 + 64)
    gradients = [(kind, size) for kind, category, size in events(session.ops) if category == "gradient"]
    assert sorted(gradients[:2]) == [("free", WORD * 64), ("free", WORD * 128)]
    assert sorted(gradients[2:]) == [("alloc", WORD * 64), ("alloc", WORD * 128)]


def test_memory_that_a_storage_grows_into_is_allocated_anew() -> None:
    """As FSDP does it: the storage of a parameter is emptied and filled again."""
    whole = torch.zeros(100)
    with recording() as session:
        whole.untyped_storage().resize_(0)
        torch.ones(10)
        whole.untyped_storage().resize_(400)
        whole.fill_(1)
    assert events(session.ops) == [
        ("free", "activation", 400), ("alloc", "activation", 40), ("free", "activation", 40),
        ("alloc", "parameter", 400),
    ]  # fmt: skip


def test_what_the_garbage_collector_frees_is_free_after_its_last_use() -> None:
    with recording() as session:
        loop: dict[str, Any] = {"tensor": torch.ones(10)}
        loop["self"] = loop
        loop["tensor"].add_(1)
        del loop
        torch.ones(3).add_(1)
        gc.collect()
        torch.ones(5)
    assert [size for _, _, size in events(session.ops)] == [40, 40, 12, 12, 20, 20]


def test_views_and_unused_memory_are_no_events() -> None:
    with recording() as session:
        torch.ones(10).view(2, 5).t().add_(1)
        torch.empty(1000)
    assert [size for _, _, size in events(session.ops)] == [40, 40]


# ---- parallel jobs, in a fake world


def steps(*options: str) -> list[Op]:
    return fake.capture_rank(load(find("llama.py"), options), 0).ops


def test_fsdp_unshards_each_layer_twice_and_reshards_it() -> None:
    found: dict[tuple[int | None, str | None], Counter[str]] = defaultdict(Counter)
    for op in steps("--fsdp", "2"):
        if op.category == "parameter":
            found[op.layer, op.phase][op.kind] += op.bytes
    forward = {layer: counts for (layer, phase), counts in found.items() if phase == "forward" and layer is not None}
    assert forward == {layer: {"alloc": WORD * LAYER, "free": WORD * LAYER} for layer in range(4)}
    whole = sum(found.values(), Counter())
    ends = 2 * V * D + D  # embedding, head, last norm: gathered once, kept from forward to backward
    assert whole["alloc"] == whole["free"] == WORD * (2 * 4 * LAYER + ends)


def test_one_layer_is_unsharded_at_a_time_and_the_ends() -> None:
    """A layer that is prefetched waits in the buffer of its all-gather until its turn."""
    parameters = [now["parameter"] for now in alive(steps("--fsdp", "2"))]
    assert max(parameters) == WORD * (LAYER + 2 * V * D + D)


def test_buffers_of_gathers_and_reductions_are_communication() -> None:
    ops = steps("--fsdp", "2")
    largest = max(size for kind, category, size in events(ops) if category == "communication")
    assert largest == WORD * LAYER
    assert alive(ops)[-1]["communication"] == 0


def test_gathered_sequences_that_the_backward_needs_are_activations() -> None:
    """Sequence parallel gathers the input of attention and feed-forward; both matrix products keep it."""
    gathered = Counter(op.category for op in events_of_gathers(steps("--tp", "2"), "forward"))
    assert gathered["activation"] >= 2 * 4
    assert not gathered["communication"]
    assert "activation" not in {op.category for op in events_of_gathers(steps("--fsdp", "2"), "forward")}


def events_of_gathers(ops: list[Op], phase: str) -> list[Op]:
    """Allocs of what all-gathers of a phase fill."""
    filled = {ref for op in ops if op.collective == "all_gather" and op.phase == phase for ref, _ in op.writes}
    return [op for op in ops if op.kind == "alloc" and op.storage in filled]


def test_recomputation_lowers_the_peak() -> None:
    """Of each layer only its input is kept until the backward, and once the inside of one."""

    def peak(how: str) -> int:
        return max(now["activation"] for now in alive(steps("--recompute", how)))

    none, full = peak("none"), peak("full")
    inside = WORD * T * F  # one of the results inside a layer, the feed-forward's
    assert none - full > 3 * 3 * inside  # three layers keep nothing, and each has three and more of those


def test_a_pipeline_keeps_as_many_microbatches_as_its_schedule_says() -> None:
    """GPipe runs all eight forward before the first backward; 1F1B, on the first of two stages, two."""
    pipeline = ("--pp", "2", "--microbatches", "8")
    gpipe, one_f_one_b = (
        max(now["activation"] for now in alive(steps(*pipeline, "--schedule", schedule)))
        for schedule in ("GPipe", "1F1B")
    )
    assert gpipe / one_f_one_b == pytest.approx(8 / 2, rel=0.15)  # both have a layer's temporary memory beside


@pytest.mark.parametrize("lowering", ["eager", "compile"])
@pytest.mark.parametrize("options", ["--fsdp 2 --tp 2 --layers 6", "--pp 2 --fsdp 2 --microbatches 4"])
def test_a_replay_takes_as_long_with_memory_events_as_without(options: str, lowering: str) -> None:
    loaded = load(find("llama.py"), options.split())
    trace = fold(merge(fake.capture_roles(loaded), loaded.axes, Meta()))
    runs = [
        open_job(made, "fattree", device="h100", lowering=lowering).run() for made in (trace, without_events(trace))
    ]
    assert runs[0].memory
    # Rows of a run are added up, and with others between them sums may differ in the last place; and that the loss
    # outlives the step, so that a fused kernel writes its 4 bytes (2e-12 s), only memory events tell.
    same = partial(pytest.approx, rel=1e-8)
    assert runs[0].step_seconds == same(runs[1].step_seconds)
    for mine, theirs in zip(*(run.ranks for run in runs), strict=True):
        assert mine.partition.compute_seconds == same(theirs.partition.compute_seconds)
        assert mine.partition.exposed_wait_seconds == same(theirs.partition.exposed_wait_seconds)


def without_events(trace: Trace) -> Trace:
    def kept(ops: list[Any]) -> list[Any]:
        return [op for op in ops if not isinstance(op, Op) or op.kind not in ("alloc", "free")]

    blocks = {name: kept(body) for name, body in trace.blocks.items()}
    return msgspec.structs.replace(trace, blocks=blocks, programs=[Program(kept(p.ops)) for p in trace.programs])


def test_without_memory_events_the_rest_is_the_same() -> None:
    loaded = load(find("llama.py"), ["--fsdp", "2"])
    whole, bare = (fake.capture_rank(loaded, 0, memory=memory) for memory in (True, False))
    trace, other = (merge([capture], loaded.axes, Meta()) for capture in (whole, bare))
    assert bare.resident == whole.resident
    rest = [op.name for op in trace.programs[0].ops if op.kind not in ("alloc", "free")]
    assert rest == [op.name for op in other.programs[0].ops]
    assert not list(check.faults(other))
