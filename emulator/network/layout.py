"""Where the members of a group sit: in which server, at which place of a torus. Algorithms see nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from emulator.network.bind import Fabric, domain_pattern
from emulator.network.collectives import Grid
from emulator.network.maxmin import Ints


@runtime_checkable
class Gridded(Protocol):
    """A fabric whose accelerators stand on a grid, row by row; ``grid_closed``: which axes have neighbouring ends."""

    @property
    def grid_shape(self) -> tuple[int, ...]: ...
    @property
    def grid_closed(self) -> tuple[bool, ...]: ...


@dataclass(frozen=True, eq=False)
class Layout:
    """``domains`` i64[n]: label of each member's server; ``grid``: the places on a torus, if they fill a rectangle."""

    domains: Ints
    grid: Grid | None = None


def layout_pattern(fabric: Fabric, members: Ints) -> Ints:
    """i64[G, c]: groups (rows of ``members`` i64[G, n]) with equal rows have the same layout and can share phases."""
    domains = domain_pattern(fabric, members)
    if not isinstance(fabric, Gridded) or not fabric.grid_shape:
        return domains
    numbers: dict[object, int] = {}
    column = []
    for row in members:
        grid = _grid(fabric.grid_shape, fabric.grid_closed, row)
        key = None if grid is None else (grid.shape, grid.closed, grid.at.tobytes())
        column.append(numbers.setdefault(key, len(numbers)))
    return np.concatenate([domains, np.array(column)[:, np.newaxis]], axis=1)


def layout(fabric: Fabric, members: Ints) -> Layout:
    """The layout of one group (``members`` i64[n])."""
    domains = domain_pattern(fabric, members[np.newaxis])[0]
    if isinstance(fabric, Gridded) and fabric.grid_shape:
        return Layout(domains, _grid(fabric.grid_shape, fabric.grid_closed, members))
    return Layout(domains)


def _grid(shape: tuple[int, ...], closed: tuple[bool, ...], members: Ints) -> Grid | None:
    """The rectangle that members fill; None if they do not, or stand in a single place."""
    places = np.unravel_index(members, shape)
    values, index = zip(*(np.unique(place, return_inverse=True) for place in places), strict=True)
    lengths = tuple(len(value) for value in values)
    if int(np.prod(lengths)) != len(members) or len(members) == 1:
        return None
    number = np.ravel_multi_index(index, lengths)
    if len(np.unique(number)) != len(members):
        return None
    at = np.empty(len(members), dtype=np.int64)
    at[number] = np.arange(len(members))
    loops = [
        loop and len(value) > 2 and len(set(np.diff(value, append=value[0] + full).tolist())) == 1
        for loop, value, full in zip(closed, values, shape, strict=True)
    ]
    kept = [axis for axis, length in enumerate(lengths) if length > 1]
    return Grid(at.reshape([lengths[a] for a in kept]), tuple(loops[a] for a in kept))
