"""Layers become blocks, and unroll to what was recorded: ops, waits, and the storages they touch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from emulator.capture import fake
from emulator.capture.blocks import fold
from emulator.capture.merge import merge
from emulator.capture.workload import find, load
from emulator.trace import check
from emulator.trace.expand import instance_value, rows, templates
from emulator.trace.schema import BlockUse, Meta, Op, Ref, Trace

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def flat() -> Trace:
    workload = load(find("llama.py"), ["--layers", "9", "--fsdp", "2", "--tp", "2"])
    return merge([fake.capture_rank(workload, 0)], workload.axes, Meta())


@pytest.fixture(scope="module")
def folded(flat: Trace) -> Trace:
    return fold(flat)


def own_ops(trace: Trace) -> list[Op]:
    return [op for op in trace.programs[0].ops if isinstance(op, Op)]


def test_nine_layers_become_one_block_each_way(flat: Trace, folded: Trace) -> None:
    uses = [item for item in folded.programs[0].ops if isinstance(item, BlockUse)]
    assert [(use.block, use.repeat, use.set) for use in uses] == [
        ("layer_forward", 8, {"layer": "1+1"}),
        ("layer_backward", 6, {"layer": "7-1"}),  # 8 starts, 1 gathers for layer 0: both differ
    ]
    lines = len(own_ops(folded)) + sum(map(len, folded.blocks.values()))
    assert lines < 0.5 * len(flat.programs[0].ops)
    assert not list(check.faults(msgspec.structs.replace(folded)))


def test_blocks_unroll_to_the_recorded_ops(flat: Trace, folded: Trace) -> None:
    unrolled, shapes = rows(folded, 0), templates(folded).ops
    recorded = own_ops(flat)
    assert len(unrolled) == len(recorded)
    for i, op in enumerate(recorded):
        again = shapes[unrolled.template[i]]
        layer = unrolled.tags["layer"][i]
        assert op.layer == (None if layer < 0 else layer)
        assert op.module == again.module.replace("*", str(layer))
        plain = {"id": 0, "deps": [], "reads": [], "writes": [], "storage": None, "layer": None, "module": ""}
        assert msgspec.structs.replace(op, **plain) == msgspec.structs.replace(again, **plain)
        waits = unrolled.deps[unrolled.deps_ptr[i] : unrolled.deps_ptr[i + 1]].tolist()
        assert set(op.deps) <= set(waits)  # and what more there is, order implies: fold() has checked that


def test_storages_are_the_recorded_ones(flat: Trace, folded: Trace) -> None:
    """Follow every storage reference by the rules of docs/trace.md; each recorded storage has one name and back."""
    seen: dict[int, Any] = {}
    names: dict[Any, int] = {}
    void = 0
    for op, item, where in zip(own_ops(flat), *unrolled_with_place(folded), strict=True):
        for (number, size), (ref, same_size) in zip(touched(op), touched(item), strict=True):
            assert size == same_size
            name = home_of(ref, where)
            if name is None:
                void += 1
                continue
            assert seen.setdefault(number, name) == name
            assert names.setdefault(name, number) == number
    assert void < 15  # only first instances reach before their block, and name what they read with 0 bytes


def touched(op: Op) -> list[tuple[Ref, int]]:
    """Storages that an op reads, writes, allocates or frees, with bytes."""
    accesses = [(ref, size) for ref, size in (*op.reads, *op.writes) if size]
    return accesses if op.storage is None else [*accesses, (op.storage, op.bytes)]


Place = tuple[str, int, dict[str, int], dict[str, tuple[int, int, int]]]


def unrolled_with_place(trace: Trace) -> tuple[list[Op], list[Place]]:
    """Every execution with its block, instance, and for each block (first layer, step, instances so far)."""
    ops: list[Op] = []
    places: list[Place] = []
    state: dict[str, tuple[int, int, int]] = {}
    for item in trace.programs[0].ops:
        if isinstance(item, Op):
            ops.append(item)
            places.append(("", 0, {}, dict(state)))
            continue
        first, step = instance_value(item.set["layer"])
        for instance in range(item.repeat):
            state[item.block] = (first, step, instance + 1)
            for op in trace.blocks[item.block]:
                ops.append(op)
                places.append((item.block, instance, {"layer": first + step * instance}, dict(state)))
    return ops, places


def home_of(ref: Ref, place: Place) -> tuple[str, int, int] | None:
    block, instance, tags, state = place
    if isinstance(ref, int):
        return (block, instance, ref)
    back, name, other = int(ref[0]), int(ref[1]), str(ref[2]) if len(ref) == 3 else block
    if other == "":
        return ("", 0, name)
    first, step, count = state[other]
    if back >= 0:
        at = instance - back if other == block else count - 1 - back
        return (other, at, name) if at >= 0 else None
    layer = tags["layer"] + (-1 - back) * state[block][1]
    return (other, (layer - first) * step, name)


def test_a_layer_that_differs_is_not_folded_over(flat: Trace) -> None:
    ops = [msgspec.structs.replace(op, flops=op.flops * 2) if op.layer == 4 else op for op in own_ops(flat)]
    program = msgspec.structs.replace(flat.programs[0], ops=ops)
    folded = fold(msgspec.structs.replace(flat, programs=[program]))
    covered = {
        first + step * i
        for item in folded.programs[0].ops
        if isinstance(item, BlockUse)
        for first, step in [instance_value(item.set["layer"])]
        for i in range(item.repeat)
    }
    assert 4 not in covered


def test_a_program_without_repeats_is_left_alone(flat: Trace) -> None:
    program = msgspec.structs.replace(flat.programs[0], ops=own_ops(flat)[:40])
    trace = msgspec.structs.replace(flat, programs=[program])
    assert fold(trace) == trace
