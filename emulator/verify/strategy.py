"""A parallel strategy proved: the job under its parallelism against the same model in one process.

Both start from the same parameters and see the same batches. After every step losses, every gradient the optimizer is
given and every parameter are compared, in the precision of the model (float64 unless told otherwise, where an error of
arithmetic has nothing to hide behind).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from emulator.capture.processes import run_ranks
from emulator.errors import InputError
from emulator.verify import memory
from emulator.verify.report import Check, Progress, Report, Stopwatch, check, report
from emulator.verify.tolerance import Tolerance, tolerance

TIME_LIMIT = 300.0
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h|block|layer)\.(\d+)(?=\.|$)")
_KINDS = ("loss", "gradient", "parameter")
Prepare = Callable[[], None]


class Difference(msgspec.Struct):
    """One tensor of one step on one rank: how far it is from the reference, and where most.

    ``holder`` is the rank that holds the element which differs most. ``bound`` is what the tolerance allows.
    """

    step: int
    kind: str
    name: str
    error: float
    bound: float
    size: float
    holder: int


class Reference(msgspec.Struct):
    """What the single process says of itself: model figures for the tolerance, and names in the model's order."""

    names: list[str]
    longest_sum: int
    matrices: int
    dtype: str
    learning_rate: float


def verify_strategy(
    script: str,
    arguments: Sequence[str] = (),
    *,
    steps: int = 3,
    time_limit: float = TIME_LIMIT,
    prepare: Prepare | None = None,
    progress: Progress = lambda _text: None,
) -> Report:
    """Train a workload under its parallelism and in one process, ``steps`` steps each, and compare.

    Without ``--dtype`` among ``arguments`` a workload that knows the option runs in float64. ``prepare`` is called in
    every parallel rank before the job is built. Raises InputError if it cannot be run.
    """
    from emulator.capture import workload  # noqa: PLC0415 - torch only when something runs

    if steps < 1:
        raise InputError(f"must be at least 1, is {steps}", source="--steps")
    watch = Stopwatch()
    path = workload.find(script)
    if not workload.is_workload(path):
        raise InputError(f"lacks one of {', '.join(workload.CONTRACT)}", source=str(path), remedy="see docs/verify.md")
    loaded = workload.load(path, arguments)
    precise = [*arguments, *_in_double(loaded.config, arguments)]
    params = float(loaded.meta().params or 0)
    world = loaded.world
    memory.check_room(1, extra_bytes=params * 8 * (4 + 2 * steps), source=path.name)
    memory.check_room(world, extra_bytes=params * 8 * (4 / max(1, world) + 2), source=path.name)
    with tempfile.TemporaryDirectory(prefix="emu-verify-") as name:
        folder = Path(name)
        alone = folder / "alone"
        alone.mkdir()
        progress("reference: one process")
        run_ranks(_reference, (path, precise, steps), 1, alone, source=path.name, time_limit=time_limit)
        reference = msgspec.msgpack.decode((alone / "reference").read_bytes(), type=Reference)
        bounds = tolerance(
            reference.dtype, longest_sum=reference.longest_sum, matrices=reference.matrices,
            learning_rate=reference.learning_rate,
        )  # fmt: skip
        progress(f"parallel: {world} processes")
        run_ranks(
            _parallel, (path, precise, steps, alone, bounds, prepare), world, folder, source=path.name,
            time_limit=time_limit,
        )  # fmt: skip
        by_rank = [
            msgspec.msgpack.decode((folder / f"differences.{rank}").read_bytes(), type=list[Difference])
            for rank in range(world)
        ]
    checks = _checks(by_rank, reference, bounds, steps, watch.lap())
    for made in checks:
        progress(made.line())
    layout = " x ".join(f"{axis} {extent}" for axis, extent in loaded.axes.items()) or f"{world} ranks"
    facts: dict[str, str | int | float] = {
        "ranks": world, "layout": layout, "steps": steps, "dtype": reference.dtype, "tolerance": bounds.text,
    }  # fmt: skip
    return report(" ".join([path.name, *arguments]), checks, facts, watch.total())


def _in_double(config: Any, arguments: Sequence[str]) -> list[str]:
    given = any(argument == "--dtype" or argument.startswith("--dtype=") for argument in arguments)
    return [] if given or not hasattr(config, "dtype") else ["--dtype", "float64"]


# ---- what is found


def _checks(
    by_rank: Sequence[Sequence[Difference]], reference: Reference, bounds: Tolerance, steps: int, seconds: float
) -> list[Check]:
    order = {name: place for place, name in enumerate(reference.names)}
    made = []
    for kind in _KINDS:
        mine = [(d, rank) for rank, found in enumerate(by_rank) for d in found if d.kind == kind]
        wrong = [(d, rank) for d, rank in mine if not d.error <= d.bound]
        wrong.sort(key=lambda line: (line[0].step, order.get(line[0].name, -1), line[1]))
        findings = [_sentence(d, rank) for d, rank in wrong]
        findings += _missing({(d.step, d.name) for d, _ in mine}, kind, reference, steps)
        sizes = [1.0 if kind == "parameter" or not d.size else d.size for d, _ in mine]
        largest = max((d.error / size for (d, _), size in zip(mine, sizes, strict=True)), default=0.0)
        text = f"{bounds.moved:.1e} a step" if kind == "parameter" else f"{bounds.relative:.1e} of the largest"
        made.append(
            check(
                {"loss": "losses", "gradient": "gradients", "parameter": "parameters"}[kind], f"{steps} steps",
                findings, len(mine), largest_error=largest, tolerance=text, seconds=seconds if kind == "loss" else 0.0,
            )
        )  # fmt: skip
    return made


def _sentence(d: Difference, rank: int) -> str:
    amount = f"differs by {d.error:.3g} (allowed {d.bound:.2g})"
    if d.kind == "loss":
        return f"step {d.step}: loss {amount}"
    layer = _LAYER.search(d.name)
    where = f", layer {layer[1]}" if layer else ""
    holder = f" (held by rank {d.holder})" if d.holder not in (-1, rank) else ""
    return f"step {d.step}: {d.kind} {d.name} {amount} on rank {rank}{holder}{where}"


def _missing(seen: set[tuple[int, str]], kind: str, reference: Reference, steps: int) -> list[str]:
    if kind == "loss":
        return [f"step {step}: no rank returned a loss" for step in range(steps) if (step, "") not in seen]
    return [
        f"step {step}: no rank has the {kind} {name}"
        for step in range(steps)
        for name in reference.names
        if (step, name) not in seen
    ]


# ---- the processes


def _reference(rank: int, nproc: int, folder: Path, path: Path, arguments: Sequence[str], steps: int) -> None:
    import torch  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    from emulator.capture import workload  # noqa: PLC0415
    from emulator.verify.training import train  # noqa: PLC0415

    torch.set_num_threads(1)
    loaded = workload.load(path, arguments)
    kept: dict[str, Any] = {}

    def keep(step: int) -> Any:
        def told(kind: str, name: str, tensor: Any) -> None:
            kept[f"{step}/{kind}/{name}"] = tensor.clone().contiguous()

        return told

    rate = train(loaded, None, steps, keep)
    parameters = {key.split("/", 2)[2]: t for key, t in kept.items() if key.startswith("0/parameter/")}
    tokens = loaded.module.batch(loaded.config, 0)
    inputs = [t for t in torch.utils._pytree.tree_leaves(tokens) if isinstance(t, torch.Tensor)]
    longest = max([*(max(t.shape, default=1) for t in parameters.values()), *(t.numel() for t in inputs)])
    floating = next(t.dtype for t in parameters.values())
    reference = Reference(
        names=list(parameters),
        longest_sum=longest,
        matrices=sum(t.ndim > 1 for t in parameters.values()),
        dtype=str(floating).removeprefix("torch."),
        learning_rate=rate,
    )
    save_file(kept, folder / "kept.safetensors")
    (folder / "reference").write_bytes(msgspec.msgpack.encode(reference))


def _parallel(
    rank: int,
    nproc: int,
    folder: Path,
    path: Path,
    arguments: Sequence[str],
    steps: int,
    alone: Path,
    bounds: Tolerance,
    prepare: Prepare | None,
) -> None:
    import torch.distributed as dist  # noqa: PLC0415
    from safetensors import safe_open  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    from emulator.capture import workload  # noqa: PLC0415
    from emulator.verify.compare import Comparison  # noqa: PLC0415
    from emulator.verify.meeting import meet  # noqa: PLC0415
    from emulator.verify.training import train  # noqa: PLC0415

    meet(rank, nproc, folder)
    loaded = workload.load(path, arguments)
    if prepare is not None:
        prepare()
    axes = loaded.axes or {"world": nproc}
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))

    def part_of(name: str, tensor: Any) -> Any:
        cut = getattr(loaded.module, "part_of", None)
        return tensor if cut is None else cut(loaded.config, mesh, name, tensor)

    with safe_open(alone / "kept.safetensors", framework="pt") as kept:
        comparison = Comparison(kept, bounds, rank, part_of)
        train(loaded, mesh, steps, comparison.at_step)
        comparison.compare_losses(steps)
    (folder / f"differences.{rank}").write_bytes(msgspec.msgpack.encode(comparison.found))
    dist.barrier()
    dist.destroy_process_group()
