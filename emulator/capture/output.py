"""From what the ranks captured to the files: the trace, and beside it, if state was kept, the tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from emulator.capture.blocks import fold
from emulator.capture.merge import group_names, merge, per_rank
from emulator.capture.session import RankCapture
from emulator.capture.state import merge_sections, write_contents
from emulator.capture.workload import Workload
from emulator.errors import InputError
from emulator.files import check_writable, read_bytes, write_bytes
from emulator.trace import io
from emulator.trace.mesh import program_of_rank
from emulator.trace.schema import Mesh, Meta, Op, Trace

RANK_SUFFIX = ".capture"  # of the file that one rank leaves


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
    """Merge the captures of all ranks (or of one for each role), write the files, and return the trace."""
    meta.torch = str(torch.__version__)
    kinds = sorted({kind for capture in captures for kind in capture.resident})
    meta.resident = {
        kind: per_rank([capture.resident.get(kind, 0) for capture in captures], captures, axes) for kind in kinds
    }
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


def save_world(output: Path, captures: Sequence[RankCapture], workload: Workload) -> Trace:
    """Write the trace of a world of which one rank of each role was captured."""
    meta = complete(workload.meta(), captures, workload.axes)
    meta.source = "torch-fake"
    return save(output, captures, [], workload.axes, meta)


def save_rank(folder: Path, capture: RankCapture) -> Path:
    """Leave the capture of one rank in ``folder``, for :func:`merge_folder`. State is not kept this way."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{capture.rank:06d}{RANK_SUFFIX}"
    capture.exec = None
    write_bytes(path, msgspec.msgpack.encode(capture))
    return path


def merge_folder(folder: Path, output: Path) -> Trace:
    """Merge the captures that the ranks of a job left in ``folder`` (``EMU_RECORD_DIR``) into one trace.

    Raises InputError if the folder has none, a file is no capture, or ranks of the job are missing.
    """
    check_writable(output)
    files = sorted(folder.glob(f"*{RANK_SUFFIX}"))
    if not files:
        raise InputError(
            f"no captures (*{RANK_SUFFIX}) in this folder", source=str(folder), remedy="set EMU_RECORD_DIR for the job"
        )
    captures = []
    for path in files:
        try:
            captures.append(msgspec.msgpack.decode(read_bytes(path), type=RankCapture))
        except msgspec.MsgspecError as error:
            raise InputError(f"not a capture of a rank ({error})", source=str(path)) from None
    captures.sort(key=lambda capture: capture.rank)
    first = captures[0]
    missing = sorted(set(range(first.world)) - {capture.rank for capture in captures})
    if missing or len(captures) != first.world:
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        reason = f"ranks {names} of {first.world} are missing" if missing else "ranks are there more than once"
        raise InputError(reason, source=str(folder))
    axes = first.mesh or {"world": first.world}
    return save(output, captures, [], axes, complete(Meta(model=first.model, source="torch"), captures, axes))


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
