"""What ``emu record`` does: a workload or script, in real processes or a fake world, into a trace file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from emulator.errors import InputError
from emulator.trace.schema import Trace

Progress = Callable[[str], None]


def record_command(
    output: Path,
    script: str,
    arguments: Sequence[str],
    *,
    nproc: int | None = None,
    world: int | None = None,
    with_state: bool = False,
    memory: bool = True,
    time_limit: float = 600.0,
    progress: Progress = lambda _text: None,
) -> Trace:
    """Record the second step of ``script`` and write it to ``output`` (and ``NAME.safetensors`` with state).

    ``script`` is a workload (a module with ``add_arguments``, ``build``, ``batch`` and ``train_step``) or any script
    that calls ``emulator.record`` itself; the latter needs real processes. ``nproc`` real processes over gloo, or a
    fake ``world`` of that many ranks in this process; with neither, a workload's own mesh decides how many processes.
    Without ``memory`` no allocations and frees are recorded. ``progress`` is told, in a few words, what is going on.
    Raises InputError with one line on anything wrong: torch missing, options, sizes that do not fit, a failing rank,
    ``time_limit`` seconds passed.
    """
    require_torch()
    if nproc is not None and world is not None:
        raise InputError("give --nproc (real processes) or --world (a fake world), not both", source="record")
    if with_state and world is not None:
        raise InputError("a fake world has no tensors to keep", source="--with-state", remedy="record with --nproc")
    for option, value in (("--nproc", nproc), ("--world", world)):
        if value is not None and value < 1:
            raise InputError(f"must be at least 1, is {value}", source=option)

    from emulator.capture import output as files  # noqa: PLC0415 - torch only when something is recorded
    from emulator.capture import workload  # noqa: PLC0415

    files.check_output(output, with_state=with_state)
    path = workload.find(script)
    if not workload.is_workload(path):
        if not memory:
            raise InputError(
                "a script asks for that itself", source="--no-memory", remedy="emulator.record(..., memory=False)"
            )
        return _record_script(output, path, arguments, nproc, world, with_state, time_limit, progress)
    loaded = workload.load(path, arguments)
    ranks = world or nproc or loaded.world
    if loaded.axes and loaded.world != ranks:
        layout = " x ".join(f"{axis} {extent}" for axis, extent in loaded.axes.items())
        option = "--world" if world is not None else "--nproc"
        raise InputError(f"{ranks} ranks, but {path.name} lays out {layout} = {loaded.world}", source=option)
    if world is not None:
        from emulator.capture import fake  # noqa: PLC0415

        return files.save_world(output, fake.capture_roles(loaded, progress, memory=memory), loaded)
    from emulator.capture import real  # noqa: PLC0415

    progress(f"recording {ranks} processes")
    captures, contents = real.capture_processes(
        path, arguments, ranks, with_state=with_state, memory=memory, time_limit=time_limit
    )
    axes = loaded.axes or {"world": ranks}
    meta = files.complete(loaded.meta(), captures, axes)
    meta.source = "torch"
    progress("merging")
    return files.save(output, captures, contents, axes, meta)


def _record_script(
    output: Path,
    path: Path,
    arguments: Sequence[str],
    nproc: int | None,
    world: int | None,
    with_state: bool,
    time_limit: float,
    progress: Progress,
) -> Trace:
    from emulator.capture import real  # noqa: PLC0415
    from emulator.trace import io  # noqa: PLC0415

    hook = 'put `with emulator.record("t.json"):` around a training step (not the first)'
    if world is not None:
        raise InputError(
            "a fake world needs a workload: add_arguments, build, batch and train_step",
            source=str(path),
            remedy="see docs/record.md; a script of any kind can be recorded with --nproc",
        )
    if with_state:
        raise InputError(
            "a script asks for state itself", source="--with-state", remedy="emulator.record(..., with_state=True)"
        )
    before = output.stat().st_mtime_ns if output.exists() else None
    progress(f"running {nproc or 1} processes")
    real.run_script(path, arguments, nproc or 1, output, time_limit=time_limit)
    if not output.exists() or output.stat().st_mtime_ns == before:
        raise InputError("the script ended without recording anything", source=str(path), remedy=hook)
    return io.read(output)


def require_torch() -> None:
    """Raise InputError, with what to install, where torch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("recording needs torch", source="emu", remedy="pip install 'emu-cluster[torch]'")
