"""``emu run``: replay a trace on a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator.cli.options import console, parse_overrides, progress
from emulator.files import check_writable


def run(
    trace: Annotated[
        str, typer.Option("--trace", "-t", help="Trace: a file, or the name of a shipped one (llama.json).")
    ],
    topo: Annotated[str, typer.Option("--topo", help="Topology: a preset (`emu topo list`) or a file.")] = "fattree",
    device: Annotated[str | None, typer.Option(help="Accelerator that computes; default: the topology's.")] = None,
    algo: Annotated[
        str,
        typer.Option(help="Collective algorithms: `ring`, or `all_reduce=ring,all_to_all=pairwise`; default: auto."),
    ] = "",
    lower: Annotated[
        str | None, typer.Option(help="How kernels are timed: `eager` as recorded, `compile` fused. Default: compile.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the topology; repeatable.")
    ] = None,
    place: Annotated[
        str, typer.Option(help="Rank to accelerator: linear, random, rail, an order of axes (`tp,pp,dp`), or a file.")
    ] = "linear",
    seed: Annotated[int, typer.Option(help="Of a random placement and of hashed routing (--set routing=ecmp).")] = 0,
    straggler: Annotated[
        list[str] | None, typer.Option(metavar="RANK:FACTOR", help="Compute of a rank takes so many times as long.")
    ] = None,
    degrade: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK:FACTOR[@t1-t2]", help="Capacity of a link (`a-b`, or `a>b` one way) times FACTOR."),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the result (emu-result/1); `-` prints it and nothing else."),
    ] = None,
    no_fold: Annotated[
        bool, typer.Option("--no-fold", help="Simulate every rank, not classes of equal ranks.")
    ] = False,
    width: Annotated[int | None, typer.Option(help="Columns of the report; default: the terminal's.")] = None,
) -> None:
    """Replay one step of a recorded job on a topology and report where the time goes.

    Example: emu run --topo torus --trace llama.json --json result.json
    """
    if json not in (None, "-"):
        check_writable(Path(json))
    overrides = parse_overrides(settings or [])
    if seed and overrides.get("routing") == "ecmp":
        overrides.setdefault("seed", str(seed))
    from emulator.api import open_job  # noqa: PLC0415  (heavy: only when there is work)
    from emulator.replay.perturb import Perturbation, parse_degrade, parse_straggler  # noqa: PLC0415
    from emulator.replay.simulate import Options  # noqa: PLC0415
    from emulator.result.io import write  # noqa: PLC0415

    job = open_job(trace, topo, device=device, lowering=lower, overrides=overrides)
    perturbation = None
    if straggler or degrade:
        perturbation = Perturbation(
            slowdown=dict(parse_straggler(text) for text in straggler or []),
            changes=[parse_degrade(text, job.topology) for text in degrade or []],
        )
    with progress("replaying") as show:
        options = Options(
            algorithms=algo, folding=not no_fold, perturbation=perturbation, placement=job.placement(place, seed)
        )  # fmt: skip
        result = job.run(options, show)
    if json is not None:
        write(result, json)
    if json != "-":
        from emulator.report.summary import render  # noqa: PLC0415

        out = console(width)
        out.print(render(result, width=out.width))
        if json is None:
            print("\nKeep it with --json FILE, then `emu view FILE --plain` shows the timeline.")
