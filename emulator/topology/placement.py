"""Which accelerator each rank runs on: in order, at random, rail by rail, by the order of the job's axes, as told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from emulator.errors import InputError
from emulator.files import read_text
from emulator.topology.graph import Ints, Topology

_NAMED = ("linear", "random", "rail")


def place(how: str, topology: Topology, world: int, *, axes: Mapping[str, int] | None = None, seed: int = 0) -> Ints:
    """The accelerator of each rank, int64[world], all different.

    ``how``:

    - ``linear``: rank r on accelerator r;
    - ``random``: any accelerators, drawn with ``seed`` (same seed, same places);
    - ``rail``: the first accelerators of all nodes, then the second ones, and so on;
    - names of the job's axes, outermost first (``pp,tp,dp``): ranks are numbered along these axes instead of in the
      order of ``axes`` (name to size, last fastest, the order in which the job numbers its ranks);
    - a file: a JSON list, or words, one per rank: numbers or names of accelerators.

    Raises InputError: an unknown word or axis, a file that does not fit, a job larger than the topology.
    """
    if world > topology.accelerators:
        raise InputError(f"the topology holds {topology.accelerators:,} accelerators, the job needs {world:,}")
    if how == "linear":
        return np.arange(world)
    if how == "random":
        return np.random.default_rng(seed).permutation(topology.accelerators)[:world]
    if how == "rail":
        return _by_rail(topology, world)
    if how and Path(how).exists():
        return _from_file(how, topology, world)
    return _by_axes(how, axes or {}, world)


def _by_rail(topology: Topology, world: int) -> Ints:
    """Only nodes that the job would fill in order take part, so that it uses no more of them than ``linear``."""
    domain = topology.domain[: topology.accelerators]
    order = np.argsort(domain, kind="stable")
    starts = np.flatnonzero(np.diff(domain[order], prepend=-1))
    inside = np.empty(len(domain), dtype=np.int64)
    inside[order] = np.arange(len(domain)) - np.repeat(starts, np.diff(starts, append=len(domain)))
    chosen = np.flatnonzero(domain <= domain[order[world - 1]])
    ranked: Ints = chosen[np.lexsort((domain[chosen], inside[chosen]))][:world]
    return ranked


def _by_axes(how: str, axes: Mapping[str, int], world: int) -> Ints:
    names = [name.strip() for name in how.split(",")]
    if sorted(names) != sorted(axes):
        raise InputError(
            f"{how!r} is no placement", source="--place",
            remedy=f"known: {', '.join(_NAMED)}, a file, or the axes of the job in any order"
            + (f" ({','.join(axes)})" if axes else ""),
        )  # fmt: skip
    rank = np.arange(world).reshape(tuple(axes.values()))
    given = list(axes)
    turned = rank.transpose([given.index(name) for name in names]).ravel()  # turned[a]: the rank on accelerator a
    return np.argsort(turned).astype(np.int64)


def _from_file(name: str, topology: Topology, world: int) -> Ints:
    text = read_text(name)
    words: list[object] = list(text.split())
    if text.lstrip().startswith("["):
        try:
            words = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"is not a JSON list: {error.msg}", source=name, place=f"line {error.lineno}") from None
    if len(words) != world:
        raise InputError(f"places {len(words):,} ranks, the job has {world:,}", source=name)
    number = {str(topology.node_names[a]): a for a in range(topology.accelerators)}
    number = {str(a): a for a in range(topology.accelerators)} | number
    unknown = next((rank for rank, word in enumerate(words) if str(word) not in number), None)
    if unknown is not None:
        raise InputError(
            f"{words[unknown]!r} is no accelerator", source=name, place=f"rank {unknown}",
            remedy=f"numbers 0 to {topology.accelerators - 1}, or names such as {topology.node_names[0]}",
        )  # fmt: skip
    places = np.array([number[str(word)] for word in words], dtype=np.int64)
    taken, count = np.unique(places, return_counts=True)
    if len(taken) < world:
        twice = int(taken[count > 1][0])
        first, second, *_ = np.flatnonzero(places == twice)
        raise InputError(f"ranks {first} and {second} are both on {topology.node_names[twice]}", source=name)
    return places
