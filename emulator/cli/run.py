"""``emu run``: replay a trace on a topology."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emulator.cli.options import console, parse_overrides, progress, topology_file, trace_file
from emulator.errors import InputError
from emulator.outputs import JSON, Output, check_outputs

if TYPE_CHECKING:
    from emulator.verify.recorded import Recorded


def run(
    trace: Annotated[
        str, typer.Option("--trace", "-t", help="Trace: a file, or the name of a shipped one (llama.json).")
    ],
    topo: Annotated[
        list[str] | None,
        typer.Option(help="Topology: a preset (`emu topo list`) or a file; several are compared. Default: fattree."),
    ] = None,
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
    seed: Annotated[
        int | None, typer.Option(help="Of a random placement and of hashed routing (--set routing=ecmp); default: 0.")
    ] = None,
    straggler: Annotated[
        list[str] | None, typer.Option(metavar="RANK:FACTOR", help="Compute of a rank takes so many times as long.")
    ] = None,
    degrade: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK:FACTOR[@t1-t2]", help="Capacity of a link (`a-b`, or `a>b` one way) times FACTOR."),
    ] = None,
    chip_share: Annotated[
        str,
        typer.Option(metavar="LINKS=K,...", help="Part of the chip that communication on these links takes: NIC=0.1"),
    ] = "",
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the result (emu-result/1); `-` prints it alone; a folder for several."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Of several topologies, so many at once.")] = None,
    perfetto: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev (.json or .json.gz).")
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Replay again with what might help, one change at a time (up to 6 runs).")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove the simulated order on real tensors (a trace recorded with state).")
    ] = False,
    no_fold: Annotated[
        bool, typer.Option("--no-fold", help="Simulate every rank, not classes of equal ranks.")
    ] = False,
    width: Annotated[int | None, typer.Option(min=30, help="Columns of the report; default: the terminal's.")] = None,
) -> None:
    """Replay one step of a recorded job on a topology and report where the time goes.

    Example: emu run --topo torus --trace llama.json --json result.json
    """
    overrides = parse_overrides(settings or [])
    from emulator.replay.simulate import Options  # noqa: PLC0415  (heavy: only when there is work)

    job = {
        "trace": trace, "device": device, "lowering": lower, "overrides": overrides, "stragglers": straggler or [],
        "degraded": degrade or [], "chip_share": chip_share, "place": place, "seed": seed,
        "options": Options(algorithms=algo, folding=not no_fold), "what_if": what_if,
    }  # fmt: skip
    if topo is not None and len(topo) > 1:
        if perfetto is not None or verify:
            raise InputError("one topology at a time", source="--verify" if verify else "--perfetto")
        _run_several(job, topo, json, jobs, width)
    else:
        _run_one(job, topo[0] if topo else "fattree", json, perfetto, width, verify)


def _run_one(
    job: dict[str, Any], topo: str, json: str | None, perfetto: str | None, width: int | None, verify: bool
) -> None:
    check_outputs([Output("--json", json, JSON, printed=True), Output("--perfetto", perfetto, JSON)], _read(job, topo))
    recorded = _recorded(job["trace"], json) if verify else None
    from emulator.api import run as replay  # noqa: PLC0415
    from emulator.result.io import write  # noqa: PLC0415

    with progress("replaying") as show:
        result = replay(**job, topology=topo, progress=show)
    if json is not None:
        write(result, json)
    if perfetto is not None:
        from emulator.report import perfetto as trace_file  # noqa: PLC0415

        trace_file.write(result, perfetto)
    if json != "-":
        from emulator.report.summary import render  # noqa: PLC0415

        out = console(width)
        out.print(render(result, width=out.width))
        if json is None and not verify:
            print("\nKeep it with --json FILE, then `emu view FILE` shows the timeline.")
    if recorded is not None:
        from emulator.cli.verify import show as show_proof  # noqa: PLC0415
        from emulator.verify.trace import verify_result  # noqa: PLC0415  (torch)

        show_proof(verify_result(recorded, result), None, width)


def _recorded(trace: str, json: str | None) -> Recorded:
    """The trace with what is needed to execute it: whether it can be is known before the replay."""
    if json == "-":
        raise InputError(
            "its findings would stand behind the document that --json - prints", source="--verify",
            remedy="write the result into a file: --json FILE",
        )  # fmt: skip
    from emulator.verify.command import require_torch  # noqa: PLC0415

    require_torch("--verify")
    from emulator.verify.recorded import read_recorded  # noqa: PLC0415  (torch)

    return read_recorded(trace)


def _read(job: dict[str, Any], *topologies: str) -> dict[str, str | Path | None]:
    """The files that a job is read from, by what they are."""
    networks = {f"the topology {name}": topology_file(name) for name in topologies}
    return {"the trace": trace_file(job["trace"]), "the placement": job["place"], **networks}


def _run_several(
    job: dict[str, Any], topologies: list[str], json: str | None, jobs: int | None, width: int | None
) -> None:
    names = [Path(name).stem for name in topologies]
    if json is not None and not Path(json).is_dir():
        raise InputError("for several topologies --json has to be a folder that exists", source=json)
    if len(set(names)) < len(names):
        raise InputError("a topology is named twice", source="--topo", place=", ".join(topologies))
    files = [] if json is None else [Output("--json", Path(json) / f"{name}.json", JSON) for name in names]
    check_outputs(files, _read(job, *topologies))
    from emulator.many import run_many  # noqa: PLC0415
    from emulator.report.compare import render  # noqa: PLC0415
    from emulator.result.io import write  # noqa: PLC0415

    with progress("replaying") as show:
        done = None if show is None else lambda count: show(count, len(topologies))
        results = run_many([{**job, "topology": topo} for topo in topologies], processes=jobs, done=done)
    if json is not None:
        for file, result in zip(files, results, strict=True):
            write(result, str(file.path))
    out = console(width)
    out.print(render(results, names, width=out.width))
