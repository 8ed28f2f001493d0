"""``emu record``: run a torch job without GPUs and write its trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emulator.outputs import Output, check_outputs
from emulator.report.figures import several
from emulator.trace.io import SUFFIXES


def record(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A workload (llama.py) or a script that calls emulator.record itself.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Trace to write: .json, .json.gz or .json.zst.")],
    nproc: Annotated[int | None, typer.Option(help="Record so many real processes over gloo.")] = None,
    world: Annotated[int | None, typer.Option(help="Record a fake world of so many ranks in this process.")] = None,
    with_state: Annotated[
        bool, typer.Option("--with-state", help="Keep what `emu verify` needs: arguments of every op, tensors beside.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Record allocations and frees.")] = True,
    time_limit: Annotated[float, typer.Option(help="Give up after so many seconds.")] = 600.0,
) -> None:
    """Record one training step of a torch job; what follows SCRIPT goes to the script.

    Real processes:  emu record -o t.json --nproc 4 llama.py --model tiny --fsdp 4

    A fake world:    emu record -o t.json --world 64 llama.py --model 8b --fsdp 8 --tp 8

    The options of a workload:  emu record -o t.json llama.py --help
    """
    check_outputs([Output("--output", output, SUFFIXES, told=True)], {"the script": script})
    from emulator.capture.command import record_command  # noqa: PLC0415  (torch takes seconds to import)

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"emu: {text} ...", file=sys.stderr)

    trace = record_command(
        output, script, context.args, nproc=nproc, world=world, with_state=with_state, memory=memory,
        time_limit=time_limit, progress=say,
    )  # fmt: skip
    ops = sum(len(program.ops) for program in trace.programs)
    print(f"{output}: {several(trace.world_size, 'rank')}, {several(len(trace.programs), 'program')}, {ops:,} lines")
    print(f"Replay it with `emu run --topo fattree --trace {output}`.")
