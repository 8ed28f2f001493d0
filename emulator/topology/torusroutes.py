"""Routes on tori and meshes: dimension order, or spread over all shortest paths.

Both depend on the distance between source and destination only, so a route is worked out once per distance and moved to
every source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import factorial, prod

import numpy as np

from emulator.topology.graph import Floats, Ints, Routes, assemble

Steps = tuple[int, ...]
Path = dict[tuple[Steps, int], float]  # (where, relative to the source; port) -> share


@dataclass(frozen=True)
class Lattice:
    """Coordinates on a torus or mesh, and which of them are the same place.

    Twisted: once round a short axis (length k) is k on along every long one (length 2k). The shapes k x k x 2k and
    k x 2k x 2k are then as symmetric as a cube: the lattices FCC and BCC of Camarero, Martinez and Beivide (2015).
    """

    shape: tuple[int, ...]
    closed: tuple[bool, ...]
    twist: bool = False

    def reduce(self, place: Ints) -> Ints:
        """The coordinates inside the shape of places [..., axes] reached by walking."""
        moved = place
        if self.twist:
            k = min(self.shape)
            short = [axis for axis, n in enumerate(self.shape) if n == k]
            turns = (place[..., short] // k).sum(axis=-1, keepdims=True)
            moved = np.where(np.isin(np.arange(len(self.shape)), short), place, place + k * turns)
        inside: Ints = np.remainder(moved, np.array(self.shape))
        return inside

    def number(self, place: Ints) -> Ints:
        """Numbers of the accelerators at places [..., axes]."""
        number: Ints = np.ravel_multi_index(tuple(np.moveaxis(self.reduce(place), -1, 0)), self.shape)
        return number

    def distance(self, start: Ints, end: Ints) -> Ints:
        """``end - start`` [F, axes], brought into one form for equal ways round."""
        if self.twist:
            return self.reduce(end - start)
        there = end - start
        for axis, length in enumerate(self.shape):
            if self.closed[axis]:
                there[:, axis] %= length
        return there

    def ways(self, distance: Steps) -> list[Steps]:
        """All shortest signed steps to a distance; the one that goes upwards on the first axes comes first."""
        if self.twist:
            found = np.array(distance) + self._rounds()
            length = np.abs(found).sum(axis=1)
            return sorted(map(tuple, found[length == length.min()].tolist()), reverse=True)
        ways: list[list[int]] = []
        for d, length, closed in zip(distance, self.shape, self.closed, strict=True):
            if not closed or 2 * d < length:
                ways.append([d])
            elif 2 * d > length:
                ways.append([d - length])
            else:
                ways.append([d, -d])
        return list(product(*ways))

    def distances(self, place: Ints) -> Ints:
        """Links from accelerator 0 to places [N, axes] of a twisted torus."""
        steps: Ints = np.abs(place[:, None, :] + self._rounds()).sum(axis=2).min(axis=1)
        return steps

    def _rounds(self) -> Ints:
        """Steps that end where they began [n, axes]: up to two rounds of each axis are enough for shortest ways."""
        k, axes = min(self.shape), len(self.shape)
        long = np.array([n == 2 * k for n in self.shape])
        basis = np.where(long[:, None], 2 * k * np.eye(axes), k * np.eye(axes) - k * long).astype(np.int64)
        return np.array(list(product(range(-2, 3), repeat=axes)), dtype=np.int64) @ basis


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

    lattice: Lattice
    port_link: Ints
    dimension_order: bool
    ties_both: bool
    hop_latency: float
    _templates: dict[Steps, Template] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes; the last is numbered fastest."""
        return self.lattice.shape

    @property
    def closed(self) -> tuple[bool, ...]:
        """Which axes have a cable from the last to the first."""
        return self.lattice.closed

    def route(self, src: Ints, dst: Ints) -> Routes:
        """Routes of the flows ``src[i] -> dst[i]``."""
        start, end = (np.stack(np.unravel_index(ends, self.shape), axis=1).astype(np.int64) for ends in (src, dst))
        distances, which = np.unique(self.lattice.distance(start, end), axis=0, return_inverse=True)
        by_distance = np.split(np.argsort(which.ravel(), kind="stable"), np.cumsum(np.bincount(which.ravel()))[:-1])
        latency = np.empty(len(src))
        parts: list[tuple[Ints, Ints, Floats]] = []
        for row, flows in zip(distances.tolist(), by_distance, strict=True):
            template = self._template(tuple(row))
            latency[flows] = template.hops * self.hop_latency
            link = self.port_link[template.port, self.lattice.number(start[flows, None, :] + template.offset)]
            parts.append((np.repeat(flows, len(template.port)), link.ravel(), np.tile(template.share, len(flows))))
        return assemble(len(src), parts, latency)

    def _template(self, distance: Steps) -> Template:
        if distance not in self._templates:
            self._templates[distance] = self._make(distance)
        return self._templates[distance]

    def _make(self, distance: Steps) -> Template:
        """Average over the shortest ways round; when spread, each counts by how many paths it has."""
        ways = self.lattice.ways(distance)
        if not self.ties_both:
            ways = ways[:1]
        weights = [1 if self.dimension_order else _paths([abs(n) for n in steps]) for steps in ways]
        shares: Path = {}
        for steps, weight in zip(ways, weights, strict=True):
            one = _ordered(steps) if self.dimension_order else _spread(steps)
            for (offset, port), share in one.items():  # all ways round end at the same node
                key = tuple(self.lattice.reduce(np.array(offset)).tolist()), port
                shares[key] = shares.get(key, 0.0) + share * weight / sum(weights)
        axes = len(self.shape)
        return Template(
            np.array([offset for offset, _ in shares], dtype=np.int64).reshape(-1, axes),
            np.array([port for _, port in shares], dtype=np.int64),
            np.array(list(shares.values())),
            sum(abs(step) for step in ways[0]),
        )


def _ordered(steps: Steps) -> Path:
    """One path, first axis first: {(offset, port): 1}."""
    here = [0] * len(steps)
    path: Path = {}
    for axis, step in enumerate(steps):
        sign = 1 if step > 0 else -1
        for _ in range(abs(step)):
            path[tuple(here), axis if step > 0 else len(steps) + axis] = 1.0
            here[axis] += sign
    return path


def _spread(steps: Steps) -> Path:
    """All shortest paths inside the box: paths through a link over all paths, as products of multinomials."""
    size = [abs(step) for step in steps]
    all_paths = _paths(size)
    shares: Path = {}
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
