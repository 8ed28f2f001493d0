"""``emu trace``: what is in a trace, and is it sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator import assets
from emulator.errors import AnswerIsNo
from emulator.outputs import Output, check_outputs

app = typer.Typer(
    help="Look into traces: `info` says what one holds, `check` whether its ranks fit together.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
_TRACE = typer.Argument(metavar="TRACE", help="A trace file, or the name of a shipped one.")
_LISTED = 50


@app.command("info")
def info(trace: Annotated[str, _TRACE]) -> None:
    """Say what a trace holds: job, mesh, ops, communication, and what the recorder could not carry."""
    from emulator.cli.options import console  # noqa: PLC0415
    from emulator.report.trace_info import render  # noqa: PLC0415
    from emulator.trace.check import load  # noqa: PLC0415
    from emulator.trace.io import SUFFIXES  # noqa: PLC0415

    path = assets.find("traces", trace, SUFFIXES)
    out = console()
    out.print(render(load(path), path.name, out.width))


@app.command("check")
def check(trace: Annotated[str, _TRACE]) -> None:
    """List every fault of a trace; exit code 1 if there is one, 2 if the file is no trace at all."""
    from emulator.trace.check import faults  # noqa: PLC0415
    from emulator.trace.io import SUFFIXES, read  # noqa: PLC0415

    path = assets.find("traces", trace, SUFFIXES)
    found = list(faults(read(path), str(path)))
    for fault in found[:_LISTED]:
        print(f"{path}: {fault.place}: {fault.reason}")
    if found:
        more = f" ({len(found) - _LISTED} more than shown)" if len(found) > _LISTED else ""
        raise AnswerIsNo(f"{len(found)} faults{more}", source=str(path))
    print(f"{path}: no faults")


@app.command("merge")
def merge(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the ranks left their captures (EMU_RECORD_DIR).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Trace to write: .json, .json.gz or .json.zst.")],
) -> None:
    """Merge what the ranks of a job recorded into one trace."""
    from emulator.capture.command import require_torch  # noqa: PLC0415
    from emulator.trace.io import SUFFIXES  # noqa: PLC0415

    require_torch()
    from emulator.capture.output import RANK_SUFFIX, merge_folder  # noqa: PLC0415  (torch)

    captures = {f"the capture {path.name}": path for path in folder.glob(f"*{RANK_SUFFIX}")}
    check_outputs([Output("--output", output, SUFFIXES, told=True)], captures)
    trace = merge_folder(folder, output)
    print(f"{output}: {trace.world_size:,} ranks, {len(trace.programs)} programs")
