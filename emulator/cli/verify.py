"""``emu verify``: execute what was simulated on real tensors, and say whether the numbers are right."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli.options import console, parse_overrides, topology_file, trace_file
from emulator.errors import AnswerIsNo
from emulator.files import packed, write_bytes
from emulator.outputs import JSON, Output, check_outputs

if TYPE_CHECKING:
    from emulator.verify.report import Report

_FINDINGS_SHOWN = 8


def verify(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(help="A trace recorded with --with-state, or a workload (.py) with its own options behind it."),
    ] = None,
    collective: Annotated[
        str | None, typer.Option(help="Prove a collective instead: all_reduce, ..., or `all`.")
    ] = None,
    algo: Annotated[str, typer.Option(help="Algorithms: of the collective (default: all), or of the replay.")] = "",
    ranks: Annotated[int, typer.Option(help="Processes of a collective.")] = 4,
    elements: Annotated[
        list[int] | None,
        typer.Option(help="Elements of a collective's buffer; repeatable. Default: two odd ones."),
    ] = None,
    topo: Annotated[
        list[str] | None, typer.Option(help="Topology; several for a trace, repeatable. Traces: fattree by default.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Accelerator that computes; default: the topology's.")] = None,
    lower: Annotated[str | None, typer.Option(help="How kernels are timed: `eager` or `compile` (default).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the topology; repeatable.")
    ] = None,
    orders: Annotated[int, typer.Option(min=0, help="Random orders of a trace, of each kind.")] = 2,
    steps: Annotated[int, typer.Option(help="Optimizer steps of a workload.")] = 3,
    time_limit: Annotated[float, typer.Option(help="Give up after so many seconds.")] = 300.0,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the findings (emu-verify/1); `-` prints them and nothing else."),
    ] = None,
    width: Annotated[int | None, typer.Option(min=30, help="Columns of the table; default: the terminal's.")] = None,
) -> None:
    """Prove that what is simulated computes the right numbers, on real tensors in processes of this machine.

    A strategy against one process:  emu verify llama.py --model tiny --fsdp 2 --tp 2

    A simulated order, op by op:     emu verify llama-tiny-fsdp4.json --topo torus --topo fattree

    A collective's schedule:         emu verify --collective all_reduce --algo ring --ranks 8

    Exit code 0: proved; 1: disproved; 2: could not be run.
    """
    read = {"the trace": None if target is None else trace_file(target)}
    read |= {f"the topology {name}": topology_file(name) for name in topo or ()}
    check_outputs([Output("--json", json, JSON, printed=True)], read)
    from emulator.verify.command import verify_command  # noqa: PLC0415

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"emu: {text}", file=sys.stderr)

    report = verify_command(
        target, context.args, collective=collective, algorithms=algo, ranks=ranks, elements=elements or (),
        topologies=topo or (), device=device, lowering=lower, overrides=parse_overrides(settings or []), orders=orders,
        steps=steps, time_limit=time_limit, progress=say,
    )  # fmt: skip
    show(report, json, width)


def show(report: Report, json: str | None = None, width: int | None = None) -> None:
    """Print (or write) a report. Raises AnswerIsNo if it is disproved."""
    if json == "-":
        sys.stdout.write(report.json().decode())
    else:
        _table(report, width)
        if json is not None:
            write_bytes(json, packed(json, report.json()))
    failed = [check for check in report.checks if not check.proved]
    if not report.proved:
        raise AnswerIsNo(f"disproved: {len(failed)} of {len(report.checks)} checks failed", source=report.subject)


def _table(report: Report, width: int | None) -> None:
    from rich.table import Table  # noqa: PLC0415

    out = console(width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("check", "left"), ("of", "left"), ("compared", "right"), ("largest error", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("allowed", overflow="fold")
    table.add_column("verdict")
    for check in report.checks:
        error = "" if check.largest_error is None else f"{check.largest_error:.1e}"
        verdict = "proved" if check.proved else "DISPROVED"
        table.add_row(check.name, check.subject, f"{check.compared:,}", error, check.tolerance, verdict)
    out.print(table)
    for check in report.checks:
        for finding in check.findings[:_FINDINGS_SHOWN]:
            out.print(f"  {check.name}: {finding}", markup=False)
        more = len(check.findings) - _FINDINGS_SHOWN + check.findings_left_out
        if more > 0:
            out.print(f"  {check.name}: {more} more")
    facts = ", ".join(f"{name} {value}" for name, value in report.facts.items())
    verdict = "proved" if report.proved else "disproved"
    out.print(f"{report.subject}: {verdict} in {report.seconds:.1f} s ({facts})", markup=False)
