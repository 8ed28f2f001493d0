"""``emu collective``: one collective on an idle topology, by algorithm and size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli.options import console, parse_overrides, topology_file
from emulator.errors import InputError
from emulator.files import packed, write_bytes
from emulator.outputs import JSON, Output, check_outputs

_LARGEST = 2.0**53  # bytes: as many as a float counts one by one

if TYPE_CHECKING:
    from emulator.network.maxmin import Ints
    from emulator.network.measure import Row
    from emulator.topology.graph import Topology


def collective(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...")
    ],
    size: Annotated[
        str, typer.Option(help="Bytes, as nccl-tests counts them (docs/network.md), e.g. `1GiB`.")
    ] = "1GiB",
    ranks: Annotated[int, typer.Option(min=1, help="Members of the group: accelerators 0, 1, ...")] = 8,
    topo: Annotated[str, typer.Option("--topo", help="Topology: a preset (`emu topo list`) or a file.")] = "fattree",
    algo: Annotated[str, typer.Option(help="Only this algorithm, e.g. `ring` or `ring/LL`; default: all.")] = "auto",
    sweep: Annotated[
        str | None, typer.Option(metavar="A:B", help="Sizes from A to B, doubling, e.g. `1KiB:8GiB`.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="`phases` as `emu run` does, or `steps`: every chunk is a flow of its own.")
    ] = "phases",
    root: Annotated[int, typer.Option(min=0, help="Root of a broadcast, reduce, gather, scatter.")] = 0,
    copies: Annotated[
        float, typer.Option(help="two_hop: members of another server that the same data goes to, on average.")
    ] = 1.0,
    place: Annotated[
        str, typer.Option(help="Accelerators of the ranks: linear, random, rail, or a file (docs/topology.md).")
    ] = "linear",
    seed: Annotated[
        int | None, typer.Option(help="Of a random placement and of hashed routing (--set routing=ecmp); default: 0.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the topology; repeatable.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the results; `-` prints them and nothing else.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw busbw over size into a PNG, SVG or PDF (matplotlib).")
    ] = None,
    width: Annotated[int | None, typer.Option(min=30, help="Columns of the table; default: the terminal's.")] = None,
) -> None:
    """Time a collective on an idle topology: seconds, algbw and busbw by algorithm, as nccl-tests does.

    Example: emu collective all_reduce --ranks 64 --topo fattree --sweep 1KiB:8GiB
    """
    check_outputs(
        [Output("--json", json, JSON, printed=True), Output("--plot", plot, (".png", ".svg", ".pdf"))],
        {"the topology": topology_file(topo), "the placement": place},
    )
    sizes = _sizes(sweep) if sweep is not None else [_bytes(size, "--size")]
    overrides = parse_overrides(settings or [])
    from emulator.network.collectives import COLLECTIVES, canonical  # noqa: PLC0415  (heavy: only when there is work)
    from emulator.network.measure import measure  # noqa: PLC0415
    from emulator.topology import placement  # noqa: PLC0415
    from emulator.topology.load import load  # noqa: PLC0415

    name = canonical(kind)
    if name not in COLLECTIVES:
        raise InputError(f"unknown collective {kind!r}", source="KIND", remedy=f"known: {', '.join(COLLECTIVES)}")
    _check(name, ranks, root)
    topology = load(topo, ranks=ranks, overrides=overrides, seed=seed)
    asked, slash, protocol = algo.partition("/")
    if slash and not protocol:
        raise InputError(f"{algo!r} names no protocol", source="--algo", remedy="for example --algo ring/LL")
    algorithm = canonical(asked) + slash + protocol
    members = placement.place(place, topology, ranks, seed=seed or 0)
    _check_copies(copies, algorithm, topology, members)
    rows = measure(topology, members, name, sizes, algorithm=algorithm, mode=mode, root=root, copies=copies)
    warnings = [*topology.findings, *_idle(name, rows, topology, overrides, place, seed, root)]
    if json is not None:
        about = {"topology": topology.name, "built": topology.built, "mode": mode}
        text = _document(rows, warnings, collective=name, ranks=ranks, **about)
        print(text) if json == "-" else write_bytes(json, packed(json, text.encode() + b"\n"))
    if plot is None and json == "-":
        return
    from emulator.report.collective import plot as draw  # noqa: PLC0415
    from emulator.report.collective import render  # noqa: PLC0415
    from emulator.report.figures import several  # noqa: PLC0415
    from emulator.report.tables import listing  # noqa: PLC0415

    title = f"{name}, {ranks:,} ranks on {topology.name} ({topology.built})"
    if plot is not None:
        write_bytes(plot, draw(rows, title, Path(plot).suffix.lstrip(".").lower() or "png"))
    if json != "-":
        out = console(width)
        out.print(render(rows, title, out.width))
        if warnings:
            out.print(listing(several(len(warnings), "warning"), warnings))


def _check(kind: str, ranks: int, root: int) -> None:
    if ranks == 1:
        raise InputError("a group of one moves nothing: there is no time to tell", source="--ranks")
    if kind == "send" and ranks != 2:
        raise InputError(f"a send has two members, not {ranks:,}", source="--ranks")
    if root >= ranks:
        raise InputError(f"{root:,} is not a member of a group of {ranks:,}: they count from 0", source="--root")


def _check_copies(copies: float, algorithm: str, topology: Topology, members: Ints) -> None:
    import numpy as np  # noqa: PLC0415

    from emulator.network.layout import layout  # noqa: PLC0415

    if not copies >= 1:
        raise InputError(f"{copies:g} copies: 1 is the least", source="--copies")
    if copies > 1 and not algorithm.startswith("two_hop"):
        raise InputError("only two_hop sends copies", source="--copies", remedy="add --algo two_hop")
    if copies > 1 and copies > (most := int(np.unique(layout(topology, members).domains, return_counts=True)[1].max())):
        raise InputError(f"{copies:g} copies: a server has {most:,} members of the group", source="--copies")


def _bytes(text: str, option: str) -> float:
    from emulator.units import parse_bytes  # noqa: PLC0415

    try:
        amount = parse_bytes(text)
    except ValueError as error:
        raise InputError(str(error), source=option) from None
    if amount < 0:
        raise InputError(f"a size must not be negative, got {text!r}", source=option)
    if amount > _LARGEST:
        raise InputError(f"a size beyond any machine (more than 2^53 bytes), got {text!r}", source=option)
    if abs(amount - round(amount)) > 1e-9 * amount:
        raise InputError(f"{text!r} is not a whole number of bytes", source=option)
    return float(round(amount))


def _sizes(sweep: str) -> list[float]:
    first, separator, last = sweep.partition(":")
    if not separator:
        raise InputError(f"{sweep!r} is not A:B", source="--sweep", remedy="for example --sweep 1KiB:8GiB")
    low, high = _bytes(first, "--sweep"), _bytes(last, "--sweep")
    if not 1 <= low <= high:
        raise InputError(f"{sweep!r} must rise from a byte or more", source="--sweep")
    sizes = [low]
    while sizes[-1] * 2 <= high:
        sizes.append(sizes[-1] * 2)
    return sizes


def _idle(
    collective: str, rows: Sequence[Row], topology: Topology, overrides: Mapping[str, str], place: str,
    seed: int | None, root: int,
) -> Iterator[str]:  # fmt: skip
    """Knobs that changed nothing."""
    from emulator.caveats import idle_seed, latency_caveat  # noqa: PLC0415
    from emulator.network.collectives import ROOTED  # noqa: PLC0415

    tuned = [bool(row.protocol) for row in rows]
    for key in topology.links_of_key:
        if key.endswith(".latency") and any(tuned):
            yield latency_caveat(topology, key, overrides[key], partly=not all(tuned))
    yield from idle_seed(seed, place, hashed=topology.routing.startswith("ecmp"))
    if root and collective not in ROOTED:
        yield f"--root {root} changed nothing: {collective} has no root"


def _document(rows: Sequence[Row], warnings: Sequence[str], **about: str | int) -> str:
    import json  # noqa: PLC0415

    results = [
        {
            "algorithm": row.algorithm, "protocol": row.protocol or None, "bytes": row.bytes, "seconds": row.seconds,
            "algbw_bytes_per_second": row.algbw, "busbw_bytes_per_second": row.busbw, "chosen": row.chosen,
        }
        for row in rows
    ]  # fmt: skip
    document = {"schema": "emu-collective/1", **about, "results": results, "warnings": warnings}
    return json.dumps(document, indent=1, allow_nan=False)
