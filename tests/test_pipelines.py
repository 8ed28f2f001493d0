"""Pipeline schedules against their formulas, as written by hand and as torch runs them, and against published rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import replay, star
from pipelines import busy_spans, gpipe, one_f_one_b, spans_of, zb_h1, zb_h2

PUBLISHED = json.loads((Path(__file__).parent / "data" / "qi2024_bubbles.json").read_text())["rows"]
FREE = {"bandwidth": "1000000 GB/s", "latency": "0 s"}


def bubble(work: float, step: float) -> float:
    return (step - work) / step


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 8), (8, 8)])
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_gpipe_and_1f1b_idle_p_minus_one_of_m_plus_p_minus_one(tmp_path: Path, schedule, p: int, m: int) -> None:
    """GPipe (Huang 2019), 1F1B (Narayanan 2021, section 2.2.1)."""
    step, _ = spans_of(schedule(p, m), {"F": 1.0, "B": 2.0}, star(tmp_path, p, **FREE))
    assert bubble(3.0 * m, step) == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 12)])
def test_zero_bubble_fills_with_weight_gradients(tmp_path: Path, p: int, m: int) -> None:
    """Qi 2024, table 2: (p-1)(F+B-W) for H1; H2's last rank begins late and ends late: (p-1)(F+B-2W) of its span."""
    times = {"F": 2.0, "I": 2.5, "W": 1.5}
    topology = star(tmp_path, p, **FREE)
    work = m * sum(times.values())
    step, _ = spans_of(zb_h1(p, m), times, topology)
    assert step - work == pytest.approx((p - 1) * (2.0 + 2.5 - 1.5), abs=1e-6)
    _, spans = spans_of(zb_h2(p, m), times, topology)
    longest = max(end - start for start, end in spans.values())
    assert longest - work == pytest.approx((p - 1) * (2.0 + 2.5 - 2 * 1.5), abs=1e-6)


def size_of(row: dict) -> int:
    return row["p"] * row["m"]


SMALL = [row for row in PUBLISHED if size_of(row) <= 256]
LARGE = [row for row in PUBLISHED if size_of(row) > 256]
rows = pytest.mark.parametrize(
    "row",
    [*SMALL, *(pytest.param(row, marks=pytest.mark.slow) for row in LARGE)],
    ids=lambda row: row["id"].removeprefix("zb_"),
)


@rows
@pytest.mark.timeout(300)
def test_published_bubble_rates_come_out_to_four_decimals(tmp_path: Path, row: dict) -> None:
    """Transfers are latency alone. ZB-H2 is counted from a rank's first action to its last, the others from 0 on."""
    p, m = row["p"], row["m"]
    times = {"F": row["F"], "I": row["B"], "W": row["W"], "B": row["B"] + row["W"]}
    times = {kind: milliseconds / 1e3 for kind, milliseconds in times.items()}
    work = m * (times["F"] + times["B"])
    topology = star(tmp_path, p, bandwidth="1000000 GB/s", latency=f"{row['comm'] / 2e3} s")
    step, _ = spans_of(one_f_one_b(p, m), times, topology)
    assert bubble(work, step) == pytest.approx(row["1F1B"], abs=0.5001e-4)
    step, _ = spans_of(zb_h1(p, m), times, topology)
    assert bubble(work, step) == pytest.approx(row["ZB-H1"], abs=0.5001e-4)
    _, spans = spans_of(zb_h2(p, m), times, topology)
    assert bubble(work, max(end - start for start, end in spans.values())) == pytest.approx(row["ZB-H2"], abs=0.5001e-4)


# ---- torch's schedules


def torch_orders(name: str, p: int, m: int, stages: int) -> list[list[tuple[str, int, int]]]:
    """The actions that torch's schedule has for each rank."""
    pytest.importorskip("torch")
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # noqa: PLC0415

    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    orders = []
    for actions in get_schedule_ops(name, p, m, num_stages_per_rank=stages):
        row = [part for action in actions if action is not None for part in (action.sub_actions or (action,))]
        orders.append([(kinds[a.computation_type.name], a.stage_index, a.microbatch_index) for a in row])
    return orders


@rows
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_torch_schedules_with_published_times(tmp_path: Path, row: dict) -> None:
    """Interleaved 1F1B with every transfer charged, and ZBV by the longest span of a rank (the authors' ZB-V orders its
    actions by the profiled times, torch's is fixed: hence 0.002)."""
    p, m, v = row["p"], row["m"], row["chunks"]
    topology = star(tmp_path, p, bandwidth="1000000 GB/s", latency=f"{row['comm'] / 2e3} s")
    seconds = {"F": row["F"] / 1e3, "I": row["B"] / 1e3, "W": row["W"] / 1e3, "B": (row["B"] + row["W"]) / 1e3}
    work = m * (seconds["F"] + seconds["B"])
    step, _ = spans_of(torch_orders("Interleaved1F1B", p, m, v), {kind: s / v for kind, s in seconds.items()}, topology)
    assert bubble(work, step) == pytest.approx(row["1F1B-I all transfers charged"], abs=0.5001e-4)
    if row["ZB-V"] is not None:
        halves = {kind: s / 2 for kind, s in seconds.items()}
        _, spans = spans_of(torch_orders("ZBVZeroBubble", p, m, 2), halves, topology)
        assert bubble(work, max(b - a for a, b in spans.values())) == pytest.approx(row["ZB-V"], abs=0.002)


P, M = 3, 6
FORMULAS = {  # idle time of a rank, in times of one action on equal stages (F = I = W): p ranks, v stages on each
    "GPipe": (1, lambda v: 3 * (P - 1)),  # (p-1)/(m+p-1), Huang 2019
    "1F1B": (1, lambda v: 3 * (P - 1)),  # the same, Narayanan 2021
    "Interleaved1F1B": (2, lambda v: 3 * (P - 1)),  # in times of a v-th of a rank: (p-1)/(vm+p-1), Narayanan 2021
    "LoopedBFS": (2, lambda v: 3 * (P - 1)),  # as interleaved, all forwards first (Lamy-Poirier 2022)
    "InterleavedZeroBubble": (2, lambda v: P - 1),  # (p-1)(F+B-W), Qi 2024
    "ZBVZeroBubble": (2, lambda v: P - 1),  # nothing inside a rank's span (Qi 2024, section 6); filling and emptying
    # (p-1)(F+B-W) by the order of its actions alone (tested below), as a forward and a backward do not really overlap
    # here; torch waits for both messages of such a pair before it starts either, which costs as much again
    "DualPipeV": (2, lambda v: 2 * (P - 1)),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_the_order_of_torch_split_schedules_alone_idles_p_minus_one(tmp_path: Path, name: str) -> None:
    p, m = 4, 8
    step, spans = spans_of(
        torch_orders(name, p, m, 2), {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}, star(tmp_path, p, **FREE)
    )
    assert step - 6 * m == pytest.approx(p - 1, abs=1e-6)
    if name == "ZBVZeroBubble":
        assert max(end - start for start, end in spans.values()) == pytest.approx(6 * m, abs=1e-6)


@pytest.mark.torch
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", FORMULAS)
def test_recorded_schedules_idle_as_their_formulas_say(tmp_path: Path, name: str) -> None:
    """A fake world's trace, every action given one length and everything else none, on a free network."""
    pytest.importorskip("torch")
    from emulator.capture import fake  # noqa: PLC0415
    from emulator.capture.merge import merge  # noqa: PLC0415
    from emulator.capture.workload import find, load  # noqa: PLC0415
    from emulator.trace.schema import Meta  # noqa: PLC0415

    v, idle = FORMULAS[name]
    options = f"--pp {P} --layers {P * v} --microbatches {M} --schedule {name} --sequence 4"
    workload = load(find("llama.py"), options.split())
    trace = merge(fake.capture_roles(workload), workload.axes, Meta())
    actions = [given_lengths(program.ops, name) for program in trace.programs]
    assert all(count == 3 * v * M for count in actions)
    step, _ = busy_spans(replay(trace, star(tmp_path, P, **FREE)))
    assert step - 3 * v * M == pytest.approx(idle(v), abs=1e-6)


def given_lengths(ops, name: str) -> int:
    """Give the first op of every action as many seconds as it is worth: a whole backward two, anything else one; where
    torch does nothing at first and all of it later (the first stage of a split backward) the later part has both."""
    split = {(op.stage, op.microbatch) for op in ops if op.phase == "backward_input" and op.kind == "compute"}
    total, seen = 0, set()
    for op in ops:
        if op.kind != "compute":
            continue
        op.duration = 0.0
        action = (op.phase, op.stage, op.microbatch)
        if op.microbatch is None or action in seen or op.phase == "optimizer":
            continue
        seen.add(action)
        whole = op.phase == "backward" or (op.phase == "backward_weight" and action[1:] not in split)
        op.duration = 2.0 if whole else 1.0
        total += int(op.duration)
    return total
