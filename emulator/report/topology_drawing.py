"""Pictures of a topology: small ones as text, any of moderate size as PNG (matplotlib, if it is installed)."""

from __future__ import annotations

from io import BytesIO
from itertools import product

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.topology.graph import Topology
from emulator.topology.torusroutes import TorusRouter

_TEXT_ACCELERATORS, _TEXT_SWITCHES, _PNG_NODES = 64, 48, 2000
_FAR_AWAY = 99  # layers


def as_text(topology: Topology, width: int = 80) -> str:
    """A drawing of at most ``width`` columns, or nothing for a topology too large for one.

    Tori as grids (``~`` marks a cable round to the other end); else a chart of cables with a row per switch and a
    column per accelerator: ``o`` a cable of its own, ``.`` reached through a switch below.
    """
    t = topology
    if t.accelerators > _TEXT_ACCELERATORS or len(t.switches) > _TEXT_SWITCHES:
        return ""
    lines = _grid(t.router) if isinstance(t.router, TorusRouter) else _chart(t)
    return "" if max(map(len, lines), default=0) > width else "\n".join(lines)


def _grid(router: TorusRouter) -> list[str]:
    """Planes of the last two axes, one for each place on the axes before them."""
    shape = (1,) * max(0, 2 - len(router.shape)) + router.shape
    closed = (False,) * max(0, 2 - len(router.shape)) + router.closed
    if len(shape) > 3:
        return []
    numbers = np.arange(np.prod(shape)).reshape(shape)
    digits = len(str(numbers.max()))
    side = "~" if closed[-1] else " "
    lines: list[str] = []
    for outer in product(*(range(n) for n in shape[:-2])):
        if outer:
            note = " (the axis closes)" if closed[0] and outer == (0,) else ""
            lines += ["", f"x = {outer[0]}, joined chip by chip to the plane before and after{note}"]
        rows = ["---".join(f"{n:>{digits}}" for n in row) for row in numbers[outer]]
        ends = (" " + "   ".join(f"{mark:>{digits}}" for mark in ("~" if closed[-2] else " ") * shape[-1])).rstrip()
        between = " " + "   ".join(f"{'|':>{digits}}" for _ in range(shape[-1]))
        body = [line for row in rows for line in (f"{side}{row}{side}".rstrip(), between)][:-1]
        lines += [line for line in (ends, *body, ends) if line.strip()]
    return lines


def _chart(t: Topology) -> list[str]:
    layer, direct, reach = _layers(t)
    rows: list[tuple[str, str]] = []
    if not len(t.switches):
        rows = [(t.node_names[a], _marks(direct[a], direct[a])) for a in range(t.accelerators)]
    for node in sorted(range(t.accelerators, t.nodes), key=lambda n: (-layer[n], n)):
        many = int(t.switches[node - t.accelerators])
        name = t.node_names[node] + (f" (x{many})" if many > 1 else "")
        rows.append((name, _marks(direct[node], reach[node])))
    label = max((len(name) for name, _ in rows), default=0)
    tens = "".join(f"{a:<10}" for a in range(0, t.accelerators, 10)).rstrip()
    ones = "".join(str(a % 10) for a in range(t.accelerators))
    heads = [f"{'':<{label}}  {tens}", f"{'':<{label}}  {ones}"]
    return heads[t.accelerators <= 10 :] + [f"{name:<{label}}  {marks}".rstrip() for name, marks in rows]


def _marks(direct: NDArray[np.bool_], reach: NDArray[np.bool_]) -> str:
    return "".join("o" if d else "." if r else " " for d, r in zip(direct, reach, strict=True))


def _layers(t: Topology) -> tuple[list[int], NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each node its distance from the accelerators, those it has a cable to, and those it has below it."""
    layer = np.where(np.arange(t.nodes) < t.accelerators, 0, _FAR_AWAY)
    direct = np.zeros((t.nodes, t.accelerators), dtype=bool)
    own = t.link_dst < t.accelerators
    direct[t.link_src[own], t.link_dst[own]] = True
    for _ in range(t.nodes):
        before = layer.copy()
        np.minimum.at(layer, t.link_dst, layer[t.link_src] + 1)
        if (layer == before).all():
            break
    reach = direct.copy()
    for level in range(2, int(layer[layer < _FAR_AWAY].max()) + 1):
        for src, dst in zip(t.link_src.tolist(), t.link_dst.tolist(), strict=True):
            if layer[src] == level and layer[dst] == level - 1:
                reach[src] |= reach[dst]
    return layer.tolist(), direct, reach


def as_png(topology: Topology) -> bytes:
    """A PNG of nodes and cables. Raises InputError: too large, or matplotlib is not installed."""
    t = topology
    if t.nodes > _PNG_NODES:
        raise InputError(
            f"{t.nodes:,} nodes are too many to draw, {_PNG_NODES:,} at most", source=t.name,
            remedy="give fewer --ranks",
        )  # fmt: skip
    try:
        from matplotlib.collections import LineCollection  # noqa: PLC0415 -- optional and slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise InputError("drawing needs matplotlib", source="--png", remedy="pip install matplotlib") from None
    place = _places(t)
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.add_subplot()
    widest = float(t.capacity.max()) if t.links else 1.0
    for level, name in enumerate(t.level_names):
        at = np.flatnonzero((t.link_level == level) & (t.link_src < t.link_dst))
        ends = np.stack([place[t.link_src[at]], place[t.link_dst[at]]], axis=1)
        if isinstance(t.router, TorusRouter):
            ends = _without_wraps(t, t.router, at, ends)
        width = np.resize(0.4 + 2.6 * t.capacity[at] / widest, len(ends))
        axes.add_collection(
            LineCollection(list(ends), linewidths=width.tolist(), color=f"C{level % 10}", alpha=0.6, label=name)
        )
    accelerator = np.arange(t.nodes) < t.accelerators
    axes.scatter(place[accelerator, 0], place[accelerator, 1], s=18, color="black", zorder=3, label="accelerators")
    if not accelerator.all():
        switches = place[t.accelerators :]
        axes.scatter(switches[:, 0], switches[:, 1], s=40, marker="s", color="gray", zorder=3, label="switches")
    axes.set_title(f"{t.name}: {t.built}", wrap=True, fontsize=10)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    axes.set_axis_off()
    out = BytesIO()
    figure.savefig(out, format="png", dpi=130)
    return out.getvalue()


def _places(t: Topology) -> NDArray[np.float64]:
    """Where nodes are drawn: tori as they are, seen from the side; accelerators without switches in a circle; else
    layers."""
    if isinstance(t.router, TorusRouter):
        at = np.stack(np.unravel_index(np.arange(t.accelerators), t.router.shape), axis=1).astype(np.float64)
        axes = at.shape[1]
        angle = np.array([0.45 + 0.4 * (axes - 1 - i) if i < axes - 1 else 0.0 for i in range(axes)])
        angle[max(0, axes - 2)] = np.pi / 2 if axes > 1 else 0.0
        length = np.where(np.arange(axes) < axes - 2, 0.42, 1.0)
        return np.stack([at @ (np.cos(angle) * length), at @ (np.sin(angle) * length)], axis=1)
    if not len(t.switches):
        angle = 2 * np.pi * np.arange(t.accelerators) / t.accelerators
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    layers, direct, _ = _layers(t)
    layer = np.array(layers)
    for node in range(t.accelerators, t.nodes):  # the switch of a server goes below it
        if layer[node] == 1 and np.ptp(t.domain[direct[node]]) == 0 < np.ptp(t.domain):
            layer[node] = -1
    place = np.empty((t.nodes, 2))
    for level in sorted(set(layer.tolist())):
        row = np.flatnonzero(layer == level)
        place[row] = np.stack([(np.arange(len(row)) + 0.5) / len(row), np.full(len(row), float(level))], axis=1)
    return place


def _without_wraps(
    t: Topology, router: TorusRouter, links: NDArray[np.int64], ends: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Cables that go round a torus end in the open on both sides instead of crossing the picture."""
    at = [np.stack(np.unravel_index(nodes[links], router.shape), axis=1) for nodes in (t.link_src, t.link_dst)]
    round_ = np.abs(at[1] - at[0]).sum(axis=1) > 1
    start, end = ends[round_, 0], ends[round_, 1]
    stub = (end - start) * 0.12
    return np.concatenate([ends[~round_], np.stack([start, start - stub], 1), np.stack([end, end + stub], 1)])
