"""Tori and meshes of any shape: accelerators that forward, a cable to the next one on every axis.

Accelerator numbers run over the shape with the last axis fastest. Routing is by dimension order (first axis first) or
spread over all shortest paths. Both depend on the distance between source and destination only, so a route is worked
out once per distance and moved to every source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import factorial, prod
from typing import Any

import numpy as np

from emulator.errors import InputError
from emulator.topology.graph import Facts, Floats, Ints, LinkTable, NodeNames, Routes, assemble
from emulator.topology.spec import Torus


@dataclass(frozen=True)
class Template:
    """The route of one distance: coordinates of the nodes that send (relative to the source), the port, the share."""

    offset: Ints  # [entries, axes]
    port: Ints  # [entries]: axis for upwards, axes + axis for downwards
    share: Floats
    hops: int


@dataclass(frozen=True, eq=False)
class TorusRouter:
    """Routes on a torus: ``port_link[port, node]`` is the link out of a node, -1 where a mesh ends."""

    shape: tuple[int, ...]
    closed: tuple[bool, ...]
    port_link: Ints
    dimension_order: bool
    ties_both: bool
    hop_latency: float
    _templates: dict[tuple[int, ...], Template] = field(default_factory=dict)

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        start = np.stack(np.unravel_index(src, self.shape), axis=1)
        distance = np.stack(np.unravel_index(dst, self.shape), axis=1) - start
        for axis, length in enumerate(self.shape):
            if self.closed[axis]:
                distance[:, axis] %= length
        distances, which = np.unique(distance, axis=0, return_inverse=True)
        by_distance = np.split(np.argsort(which.ravel(), kind="stable"), np.cumsum(np.bincount(which.ravel()))[:-1])
        latency = np.empty(len(src))
        parts: list[tuple[Ints, Ints, Floats]] = []
        for row, flows in zip(distances.tolist(), by_distance, strict=True):
            template = self._template(tuple(row))
            latency[flows] = template.hops * self.hop_latency
            place = (start[flows, None, :] + template.offset) % self.shape
            node = np.ravel_multi_index(tuple(np.moveaxis(place, 2, 0)), self.shape)
            link = self.port_link[template.port, node]
            width = len(template.port)
            parts.append((np.repeat(flows, width), link.ravel(), np.tile(template.share, len(flows))))
        return assemble(len(src), parts, latency)

    def _template(self, distance: tuple[int, ...]) -> Template:
        if distance not in self._templates:
            self._templates[distance] = self._make(distance)
        return self._templates[distance]

    def _make(self, distance: tuple[int, ...]) -> Template:
        """Average over the ways round of every half-way axis; each way is a box of signed steps."""
        ways: list[list[int]] = []
        for d, length, closed in zip(distance, self.shape, self.closed, strict=True):
            if not closed or 2 * d < length:
                ways.append([d])
            elif 2 * d > length:
                ways.append([d - length])
            else:
                ways.append([d, -d] if self.ties_both else [d])
        shares: dict[tuple[tuple[int, ...], int], float] = {}
        boxes = list(product(*ways))
        for steps in boxes:
            one = _ordered(steps) if self.dimension_order else _spread(steps)
            for (offset, port), share in one.items():  # both ways round end at the same node
                key = tuple(o % length for o, length in zip(offset, self.shape, strict=True)), port
                shares[key] = shares.get(key, 0.0) + share / len(boxes)
        axes = len(self.shape)
        return Template(
            np.array([offset for offset, _ in shares], dtype=np.int64).reshape(-1, axes),
            np.array([port for _, port in shares], dtype=np.int64),
            np.array(list(shares.values())),
            sum(abs(step) for step in boxes[0]),
        )


def _ordered(steps: tuple[int, ...]) -> dict[tuple[tuple[int, ...], int], float]:
    """One path, first axis first: {(offset, port): 1}."""
    here = [0] * len(steps)
    path: dict[tuple[tuple[int, ...], int], float] = {}
    for axis, step in enumerate(steps):
        sign = 1 if step > 0 else -1
        for _ in range(abs(step)):
            path[tuple(here), axis if step > 0 else len(steps) + axis] = 1.0
            here[axis] += sign
    return path


def _spread(steps: tuple[int, ...]) -> dict[tuple[tuple[int, ...], int], float]:
    """All shortest paths inside the box: paths through a link over all paths, as products of multinomials."""
    size = [abs(step) for step in steps]
    all_paths = _paths(size)
    shares: dict[tuple[tuple[int, ...], int], float] = {}
    for done in product(*(range(n + 1) for n in size)):
        for axis, n in enumerate(size):
            if done[axis] < n:
                left = [n - d - (a == axis) for a, (n, d) in enumerate(zip(size, done, strict=True))]
                offset = tuple(d if step > 0 else -d for d, step in zip(done, steps, strict=True))
                port = axis if steps[axis] > 0 else len(steps) + axis
                shares[offset, port] = _paths(done) * _paths(left) / all_paths
    return shares


def _paths(steps: Sequence[int]) -> int:
    return factorial(sum(steps)) // prod(factorial(n) for n in steps)


def cubic_shape(count: int, axes: int) -> tuple[int, ...]:
    """The most cubic shape of ``axes`` axes with ``count`` accelerators: least sum of lengths, in rising order."""
    if axes == 1:
        return (count,)
    shapes = [
        tuple(sorted((first, *cubic_shape(count // first, axes - 1))))
        for first in range(1, round(count ** (1 / axes)) + 1)
        if count % first == 0
    ]
    return min(shapes, key=lambda shape: (sum(shape), shape))


def build(name: str, level: Torus, accelerators: int, *, called: str, routing: str) -> dict[str, Any]:
    """The fields of a Topology for a torus or mesh. Raises InputError (without the file's name)."""
    shape = _shape(level, accelerators, name)
    wrap = [level.wrap] * len(shape) if isinstance(level.wrap, bool) else level.wrap
    if len(wrap) != len(shape):
        raise InputError(f"wrap has {len(wrap)} flags for {len(shape)} axes", place=f"levels.{name}.wrap")
    whole = level.cube is None or all(length % level.cube == 0 for length in shape)
    closed = tuple(
        flag and whole and (length > 2 or (length == 2 and level.double))
        for flag, length in zip(wrap, shape, strict=True)
    )
    total, axes = prod(shape), len(shape)
    place = np.stack(np.unravel_index(np.arange(total), shape))
    table, port_link = LinkTable(), np.full((2 * axes, total), -1, dtype=np.int64)
    for axis, length in enumerate(shape):
        there = place.copy()
        there[axis] = (place[axis] + 1) % length
        low = np.flatnonzero(np.ones(total, bool) if closed[axis] else place[axis] < length - 1)
        high = np.ravel_multi_index(tuple(there), shape)[low]
        label = f"{level.links or name} {_axis(axis)}"
        port_link[axis, low], port_link[axes + axis, high] = table.add_pair(
            low, high, label, level.capacity, level.latency
        )
    router = TorusRouter(
        shape, closed, port_link, routing == "dimension-order", level.ties == "both", float(level.latency)
    )
    kind = "torus" if any(closed) else "mesh"
    ends = [_axis(a) for a in range(axes) if not closed[a] and shape[a] > 2]
    open_ends = f", no wrap on {', '.join(ends)}" if ends and any(closed) else ""
    return table.columns() | {
        "accelerators": total,
        "node_names": NodeNames([(called, shape)]),
        "level_names": tuple(table.level_names),
        "switches": np.empty(0, dtype=np.int64),
        "domain": np.zeros(total, dtype=np.int64),
        "router": router,
        "forwards": True,
        "facts": _facts(shape, closed, level.capacity),
        "built": f"{'x'.join(map(str, shape))} {kind} of {total:,} {called}{'s' * (total > 1)}{open_ends}",
        "findings": _findings(level, shape, whole),
    }


def _shape(level: Torus, accelerators: int, name: str) -> tuple[int, ...]:
    if level.shape is None:
        return cubic_shape(accelerators, level.axes)
    try:
        lengths = level.shape.replace(",", "x").split("x") if isinstance(level.shape, str) else level.shape
        shape = tuple(int(length) for length in lengths)
        if not shape or min(shape) < 1:
            raise ValueError
    except ValueError:
        raise InputError(
            f"{level.shape!r} is not a shape", place=f"levels.{name}.shape", remedy="write it as 4x4x4"
        ) from None
    if prod(shape) < accelerators:
        raise InputError(
            f"the torus holds {prod(shape):,} accelerators, the job needs {accelerators:,}",
            place=f"levels.{name}.shape",
            remedy="give a larger shape, or none to size it to the job",
        )
    return shape


def _axis(axis: int) -> str:
    return "xyz"[axis] if axis < 3 else f"axis{axis}"


def _facts(shape: tuple[int, ...], closed: tuple[bool, ...], capacity: float) -> Facts:
    diameter = sum(n // 2 if loop else n - 1 for n, loop in zip(shape, closed, strict=True))
    cuts = [
        (prod(shape) // n * (2 if loop else 1) * capacity, axis)
        for axis, (n, loop) in enumerate(zip(shape, closed, strict=True))
        if n > 1
    ]
    if not cuts:
        return Facts(0, None, "one accelerator")
    even = [cut for cut in cuts if shape[cut[1]] % 2 == 0]
    bisection, axis = min(even or cuts)
    return Facts(diameter, bisection, f"cut across {_axis(axis)}" + ("" if even else ", halves are not equal"))


def _findings(level: Torus, shape: tuple[int, ...], whole: bool) -> tuple[str, ...]:
    if level.wrap and not whole and max(shape) > 2:
        return (f"not made of whole cubes of {level.cube}: a mesh, no axis wraps",)
    return ()
