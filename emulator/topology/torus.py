"""Tori and meshes of any shape: accelerators that forward, a cable to the next one on every axis.

Accelerator numbers run over the shape with the last axis fastest. A hypercube is a torus whose axes all have length 2
and one cable. Routes are in ``torusroutes``.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InputError
from emulator.topology.graph import Facts, LinkTable, NodeNames, check_size, crossing
from emulator.topology.spec import Hypercube, Torus
from emulator.topology.torusroutes import Lattice, TorusRouter


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
    check_size(2 * prod(shape) * len(shape), name)
    wrap = [level.wrap] * len(shape) if isinstance(level.wrap, bool) else level.wrap
    if len(wrap) != len(shape):
        raise InputError(f"wrap has {len(wrap)} flags for {len(shape)} axes", place=f"levels.{name}.wrap")
    whole = level.cube is None or all(length % level.cube == 0 for length in shape)
    closed = tuple(
        flag and whole and level.full in (None, length) and (length > 2 or (length == 2 and level.double))
        for flag, length in zip(wrap, shape, strict=True)
    )
    if level.twist:
        _check_twist(shape, wrap, whole, name)
        closed = (True,) * len(shape)
    lattice = Lattice(shape, closed, level.twist)
    total, axes = prod(shape), len(shape)
    place = np.stack(np.unravel_index(np.arange(total), shape), axis=1)
    table, port_link = LinkTable(), np.full((2 * axes, total), -1, dtype=np.int64)
    for axis, length in enumerate(shape):
        there = place.copy()
        there[:, axis] += 1
        low = np.flatnonzero(closed[axis] | (there[:, axis] < length))
        high = lattice.number(there[low])
        label = f"{level.links or name} {_axis(axis)}"
        port_link[axis, low], port_link[axes + axis, high] = table.add_pair(
            low, high, label, level.capacity, level.latency
        )
    router = TorusRouter(lattice, port_link, routing == "dimension-order", level.ties == "both", float(level.latency))
    columns = table.columns()
    kind = "twisted torus" if level.twist else "torus" if any(closed) else "mesh"
    ends = [_axis(a) for a in range(axes) if not closed[a] and shape[a] > 2]
    open_ends = f", no wrap on {', '.join(ends)}" if ends and any(closed) else ""
    return columns | {
        "accelerators": total,
        "node_names": NodeNames([(called, shape)]),
        "level_names": tuple(table.level_names),
        "switches": np.empty(0, dtype=np.int64),
        "domain": np.zeros(total, dtype=np.int64),
        "router": router,
        "forwards": True,
        "facts": _twisted_facts(lattice, columns, place) if level.twist else _facts(shape, closed, level.capacity),
        "built": f"{'x'.join(map(str, shape))} {kind} of {total:,} {called}{'s' * (total > 1)}{open_ends}",
        "findings": _findings(level, shape, whole),
    }


def build_hypercube(name: str, level: Hypercube, accelerators: int, *, called: str, routing: str) -> dict[str, Any]:
    """The fields of a Topology for the smallest hypercube that holds the job. Raises InputError."""
    wanted = level.size or accelerators
    bits = max(wanted - 1, 0).bit_length()
    check_size(bits << bits, name)
    if wanted < accelerators or (level.size is not None and level.size != 2**bits):
        reason = "is not a power of two" if level.size != 2**bits else f"is too few, the job needs {accelerators:,}"
        raise InputError(f"{level.size:,} {reason}", place=f"levels.{name}.size")
    as_torus = Torus(
        bandwidth=level.bandwidth, efficiency=level.efficiency, latency=level.latency, links=level.links or name,
        shape=[2] * max(bits, 1) if bits else [1],
    )  # fmt: skip
    fields = build(name, as_torus, wanted, called=called, routing=routing)
    return fields | {"built": f"hypercube of {2**bits:,} {called}{'s' * (bits > 0)}, {bits} cables each"}


def _check_twist(shape: tuple[int, ...], wrap: list[bool], whole: bool, name: str) -> None:
    short = min(shape)
    if short < 2 or len(shape) not in (2, 3) or set(shape) != {short, 2 * short}:
        raise InputError(
            f"a torus of {'x'.join(map(str, shape))} cannot be twisted", place=f"levels.{name}.twist",
            remedy="twisted shapes are k x 2k, k x k x 2k and k x 2k x 2k",
        )  # fmt: skip
    if not all(wrap) or not whole:
        raise InputError("a twisted torus closes all its axes", place=f"levels.{name}.twist")


def lengths(level: Torus, name: str) -> tuple[int, ...]:
    """The shape that a level gives. Raises InputError if that is none."""
    shape = level.shape or []
    try:
        given = shape.replace(",", "x").split("x") if isinstance(shape, str) else shape
        found = tuple(int(length) for length in given)
        if not found or min(found) < 1:
            raise ValueError
    except ValueError:
        raise InputError(
            f"{level.shape!r} is not a shape", place=f"levels.{name}.shape", remedy="write it as 4x4x4"
        ) from None
    return found


def _shape(level: Torus, accelerators: int, name: str) -> tuple[int, ...]:
    if level.shape is None:
        cube = (level.cube or 1) ** level.axes
        if accelerators % cube == 0:  # whole cubes, so that the axes may close
            return tuple(n * (level.cube or 1) for n in cubic_shape(accelerators // cube, level.axes))
        return cubic_shape(accelerators, level.axes)
    shape = lengths(level, name)
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


def _twisted_facts(lattice: Lattice, columns: dict[str, Any], place: NDArray[np.int64]) -> Facts:
    """Diameter by the lengths of all routes; bisection as the cheapest cut across an axis."""
    cuts = [(crossing(columns, place[:, axis] < n // 2), axis) for axis, n in enumerate(lattice.shape) if n % 2 == 0]
    diameter = int(lattice.distances(place).max())
    if not cuts:
        return Facts(diameter)
    bisection, axis = min(cuts)
    return Facts(diameter, bisection, f"an upper bound: cut across {_axis(axis)}")


def _findings(level: Torus, shape: tuple[int, ...], whole: bool) -> tuple[str, ...]:
    if level.wrap and not whole and max(shape) > 2:
        return (f"not made of whole cubes of {level.cube}: a mesh, no axis wraps",)
    return ()
