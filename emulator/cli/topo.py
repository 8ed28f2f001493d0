"""``emu topo``: the topologies there are."""

from __future__ import annotations

from typing import Annotated

import typer

from emulator.cli.options import console, parse_overrides
from emulator.errors import AnswerIsNo

app = typer.Typer(
    help="Look at topologies: `list` the presets, `show` one, `check` a file.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
_SPEC = typer.Argument(metavar="TOPOLOGY", help="A preset (`emu topo list`) or a file.")
_RANKS = typer.Option("--ranks", min=1, help="Size it for a job of so many ranks.")
_SET = typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the topology; repeatable.")


@app.command("list")
def list_presets() -> None:
    """List the presets."""
    from emulator.topology.load import presets  # noqa: PLC0415

    for name, description in presets():
        print(f"{name:<12} {description}")


@app.command("show")
def show(
    topology: Annotated[str, _SPEC],
    ranks: Annotated[int, _RANKS] = 64,
    settings: Annotated[list[str] | None, _SET] = None,
) -> None:
    """Say what a topology is made of: nodes, links, diameter, bisection, oversubscription, sources."""
    from emulator.report.topology import render  # noqa: PLC0415
    from emulator.topology.load import load  # noqa: PLC0415
    from emulator.topology.show import describe  # noqa: PLC0415

    loaded = load(topology, ranks=ranks, overrides=parse_overrides(settings or []))
    out = console()
    out.print(render(describe(loaded), out.width))


@app.command("check")
def check(
    topology: Annotated[str, _SPEC],
    ranks: Annotated[int, _RANKS] = 64,
    settings: Annotated[list[str] | None, _SET] = None,
) -> None:
    """List what is wrong with a topology, or surprising; exit code 1 if something is wrong."""
    from emulator.topology.show import check as findings  # noqa: PLC0415

    found = findings(topology, ranks=ranks, overrides=parse_overrides(settings or []))
    for finding in found:
        print(f"{topology}: {finding.severity}: {finding.text}")
    if any(finding.severity == "error" for finding in found):
        raise AnswerIsNo("the topology is not usable", source=topology)
    print(f"{topology}: usable")
