"""``emu topo``: the topologies there are."""

from __future__ import annotations

from typing import Annotated

import typer

from emulator.cli.options import console, parse_overrides, topology_file
from emulator.errors import AnswerIsNo
from emulator.outputs import Output, check_outputs

app = typer.Typer(
    help="Look at topologies: `list` the presets, `show` one, `check` or `convert` a file.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
_SPEC = typer.Argument(
    metavar="TOPOLOGY", help="A preset (`emu topo list`) or a file: levels, graph, ASTRA-sim, NCCL, SimAI."
)
_RANKS = typer.Option("--ranks", min=1, help="Size it for a job of so many ranks (default: 64, or the file's).")
_SET = typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the topology; repeatable.")


@app.command("list")
def list_presets() -> None:
    """List the presets."""
    from emulator.topology.load import presets  # noqa: PLC0415

    for name, description in presets():
        print(f"{name:<18} {description}")


@app.command("show")
def show(
    topology: Annotated[str, _SPEC],
    ranks: Annotated[int | None, _RANKS] = None,
    settings: Annotated[list[str] | None, _SET] = None,
    png: Annotated[str | None, typer.Option("--png", metavar="FILE", help="Draw it into a file (matplotlib).")] = None,
) -> None:
    """Say what a topology is made of: nodes, links, diameter, bisection, oversubscription, power, sources."""
    from emulator.files import write_bytes  # noqa: PLC0415
    from emulator.report.topology import render  # noqa: PLC0415
    from emulator.report.topology_drawing import as_png, as_text  # noqa: PLC0415
    from emulator.topology.load import load  # noqa: PLC0415
    from emulator.topology.show import describe  # noqa: PLC0415

    check_outputs([Output("--png", png, (".png",))], {"the topology": topology_file(topology)})
    loaded = load(topology, ranks=ranks, overrides=parse_overrides(settings or []))
    out = console()
    out.print(render(describe(loaded), out.width))
    drawing = as_text(loaded, out.width)
    if drawing:
        out.print("\nDrawing (o: a cable, .: through a switch below, ~: round to the other end)", style="bold")
        out.print(drawing, markup=False, highlight=False, soft_wrap=True)
    if png is not None:
        write_bytes(png, as_png(loaded))


@app.command("check")
def check(
    topology: Annotated[str, _SPEC],
    ranks: Annotated[int | None, _RANKS] = None,
    settings: Annotated[list[str] | None, _SET] = None,
) -> None:
    """List what is wrong with a topology, or surprising; exit code 1 if something is wrong, 2 if it cannot be built."""
    from emulator.topology.show import check as findings  # noqa: PLC0415

    found = findings(topology, ranks=ranks, overrides=parse_overrides(settings or []))
    for finding in found:
        print(f"{topology}: {finding.severity}: {finding.text}")
    if any(finding.severity == "error" for finding in found):
        raise AnswerIsNo("the topology is not usable", source=topology)
    print(f"{topology}: usable")


@app.command("convert")
def convert(
    topology: Annotated[str, _SPEC],
    output: Annotated[str, typer.Argument(metavar="OUT", help="Node-link JSON, as networkx writes it; - prints it.")],
    ranks: Annotated[int | None, _RANKS] = None,
    settings: Annotated[list[str] | None, _SET] = None,
) -> None:
    """Write any topology as a graph of nodes and links that `--topo` and networkx read."""
    check_outputs([Output("OUT", output, (".json",), printed=True)], {"the topology": topology_file(topology)})
    import msgspec  # noqa: PLC0415

    from emulator.files import write_bytes  # noqa: PLC0415
    from emulator.topology.explicit import node_link  # noqa: PLC0415
    from emulator.topology.load import load  # noqa: PLC0415

    loaded = load(topology, ranks=ranks, overrides=parse_overrides(settings or []))
    text = msgspec.json.format(msgspec.json.encode(node_link(loaded)), indent=1) + b"\n"
    if output == "-":
        print(text.decode(), end="")
        return
    write_bytes(output, text)
    print(f"{output}: {loaded.nodes:,} nodes, {loaded.links:,} directed links")
    if loaded.routing != "spread":
        typer.echo(f"{output}: a graph is routed over all shortest paths; the original: {loaded.routing}", err=True)
