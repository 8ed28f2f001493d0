"""From what the ranks captured to the files: the trace, and beside it, if state was kept, the tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from emulator.capture.blocks import fold
from emulator.capture.merge import group_names, merge
from emulator.capture.session import RankCapture
from emulator.capture.state import merge_sections, write_contents
from emulator.capture.workload import Workload
from emulator.files import check_writable
from emulator.trace import io
from emulator.trace.mesh import program_of_rank
from emulator.trace.schema import Mesh, Meta, Op, Trace


def check_output(output: Path, *, with_state: bool) -> None:
    """Raise InputError if the files could not be written: before the recording, not after."""
    check_writable(output)
    if with_state:
        check_writable(state_file(output))


def state_file(output: Path) -> Path:
    """``NAME.safetensors`` for ``NAME.json``, ``NAME.json.gz``, ``NAME.json.zst``."""
    name = output.name
    for suffix in io.SUFFIXES:
        name = name.removesuffix(suffix)
    return output.with_name(f"{name}.safetensors")


def save(
    output: Path, captures: Sequence[RankCapture], contents: Sequence[bytes], axes: dict[str, int], meta: Meta
) -> Trace:
    """Merge the captures of all ranks (or of one that stands for all), write the files, and return the trace."""
    meta.torch = str(torch.__version__)
    meta.resident = dict(captures[0].resident)
    notes: Counter[str] = Counter()
    for capture in captures:
        notes.update(capture.notes)
    meta.notes = {**meta.notes, **notes, "ranks_recorded": len(captures)}
    if any(capture.first_step for capture in captures):
        meta.notes["first_step"] = 1
    trace = merge(captures, axes, meta)
    if contents:
        sections = [capture.exec or {} for capture in captures]
        names = group_names(captures, Mesh(axes=list(axes), shape=list(axes.values())))
        renamed = {",".join(map(str, members)): name for members, (name, _) in names.items()}
        file = state_file(output)
        trace.exec = merge_sections(sections, program_of_rank(trace).tolist(), renamed, file.name)
        write_contents(contents, file)
    else:
        trace = fold(trace)  # with state, ops keep the numbers that `exec` calls them by
    io.write(trace, output)
    return trace


def save_world(output: Path, capture: RankCapture, workload: Workload) -> Trace:
    """Write the trace of a world whose ranks all play the role of the one that was captured."""
    meta = complete(workload.meta(), [capture], workload.axes)
    meta.source = "torch-fake"
    return save(output, [capture], [], workload.axes, meta)


def complete(meta: Meta, captures: Sequence[RankCapture], axes: dict[str, int]) -> Meta:
    """Fill in what a script does not say of itself from what was recorded."""
    first = captures[0]
    world = 1
    for extent in axes.values():
        world *= extent
    meta.parallel = meta.parallel or dict(axes)
    meta.dtype = meta.dtype or first.dtype
    meta.params = meta.params or first.params
    meta.layers = meta.layers or first.layers
    if not meta.model_flops:
        counted = sum(_matmul_flops(capture.ops) for capture in captures)
        meta.model_flops = counted * world // len(captures)
        meta.model_flops_note = "counted: recorded matmuls and attention of all ranks, without recomputation"
    return meta


def _matmul_flops(ops: Sequence[Op]) -> int:
    classes = ("gemm", "grouped_gemm", "attention")
    flops = [op.flops for op in ops if op.op_class in classes and op.phase != "recompute"]
    return int(sum(value for value in flops if isinstance(value, int | float)))
