"""Topologies by name or file: ``load`` reads the levels, applies ``--set``, checks, and calls the fabric's builder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from emulator import assets
from emulator.errors import InputError
from emulator.topology import fabric, imports
from emulator.topology.clos import ClosDesign
from emulator.topology.document import SUFFIXES, convert, read_yaml
from emulator.topology.graph import Topology, merge
from emulator.topology.sizing import TooSmallError
from emulator.topology.spec import FLAGS, LEVELS, Level, TopologyFile, decode_quantity
from emulator.topology.tuning import read_tuning

_KIND = "topologies"
_NOT_TOPOLOGIES = {"devices.yaml"}
_TOP_KEYS = ("routing", "flows_per_pair", "seed", "pxn", "accelerators", "largest", "bundled", "tuning")
_ALIKE = 0.75  # of the letters: a key that much like a known one was probably meant to be it
_SHOWN = 64  # ranks, where nobody says how many
_FLAG_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}  # as YAML reads them
_SAMPLE = 256  # pairs whose routes are compared to see whether a setting changed anything


def presets() -> list[tuple[str, str]]:
    """Name and one-line description of every preset, sorted."""
    found = []
    for name in _preset_names():
        document = read_yaml(assets.folder(_KIND) / name, name)
        found.append((Path(name).stem, str(document.get("description", ""))))
    return found


def load(
    spec: str, *, ranks: int | None, overrides: Mapping[str, str] | None = None, seed: int | None = None
) -> Topology:
    """The topology that ``spec`` means: a preset's name, or a file of levels, a graph, or one of another tool.

    Files are known by their content (``imports.sniff``). Sized to ``ranks`` accelerators unless the file says otherwise
    (None: as large as the file says, or for a job of 64, to be looked at). ``overrides`` are dotted keys of the file
    (``spine.oversubscription``); those that changed nothing are said in ``findings``. ``seed``: of hashed routing, if
    it is hashed and ``overrides`` have none. Raises InputError: no such file or preset, a fault in it, a job that does
    not fit.
    """
    path, overrides = _find(spec), dict(overrides or {})
    kind = imports.sniff(path, spec)
    if kind in imports.GRAPHS:
        routing = _graph_routing(_seeded(overrides, {}, seed), spec)
        topology = imports.read_graph(kind, path, spec, routing)
        idle = tuple(f"{key}={overrides[key]} changed nothing" for key in _idle_keys(routing, overrides))
        topology = replace(topology, findings=(*topology.findings, *idle))
    else:
        document = imports.levels_of_astra_sim(path, spec) if kind == "astra-sim" else _document(path, spec)
        topology = _from_levels(document, ranks, _seeded(overrides, document, seed), path, spec)
    if ranks is not None and ranks > topology.accelerators:
        raise InputError(
            f"the topology holds {topology.accelerators:,} accelerators, the job needs {ranks:,}", source=spec
        )
    return topology


@dataclass(frozen=True)
class _Sized:
    """A file of levels that is read, checked, and knows how many accelerators it is to hold."""

    file: TopologyFile
    levels: dict[str, Level]
    accelerators: int
    path: Path
    spec: str

    @cached_property
    def built(self) -> tuple[Topology, tuple[str, ...]]:
        """The topology, and the levels that it needs."""

        def read_graph(name: str) -> Topology:
            near = self.path.parent / name
            inner = near if near.exists() else _find(name)
            return imports.read_graph(imports.sniff(inner, name), inner, name, _graph_routing({}, name))

        file = self.file
        with located(self.spec):
            built = fabric.build(file, self.levels, self.accelerators, read_graph)
        used = built.pop("used")
        sources = tuple(f"{name}: {text}" for name, text in file.sources.items())
        hashed = f", {file.flows_per_pair} flows per pair, seed {file.seed}" if file.routing == "ecmp" else ""
        power = None if file.power is None else file.power.watts * built["accelerators"] / file.power.accelerators
        return Topology(
            name=file.name, routing=file.routing + hashed + (", PXN" if file.pxn else ""), device=file.device,
            sources=sources, power=power, power_note=file.power.note if file.power else "",
            in_network=tuple(file.in_network), tuning=read_tuning(file.tuning, self.spec), **built,
        ), used  # fmt: skip

    @cached_property
    def design(self) -> ClosDesign | None:
        """The topology in numbers, where these alone decide it."""
        with located(self.spec):
            return fabric.clos_design(self.file, self.levels, self.accelerators)

    def same(self, other: _Sized) -> bool:
        """Would ``other`` give the same times?"""
        if self.design is None or other.design is None:
            return _same(self.built[0], other.built[0])
        beside = [(s.file.device, s.file.power, s.file.tuning) for s in (self, other)]
        return self.design == other.design and beside[0] == beside[1]

    def same_cables(self, other: _Sized) -> bool:
        """Would ``other`` have links between the same nodes?"""
        if self.design is not None and other.design is not None:
            return self.design.cabling() == other.design.cabling()
        ends = [(t.link_src, t.link_dst) for t in (self.built[0], other.built[0])]
        return all(np.array_equal(mine, theirs) for mine, theirs in zip(*ends, strict=True))


def _from_levels(
    document: dict[str, Any], ranks: int | None, overrides: Mapping[str, str], path: Path, spec: str
) -> Topology:
    sized = _sized(_overridden(document, overrides, spec), ranks, path, spec)
    try:
        topology, used = sized.built
    except TooSmallError as error:
        if ranks is not None or sized.file.accelerators is not None or not error.room:
            raise
        ranks = error.room  # to be looked at, it is as large as it can be
        sized = _sized(_overridden(document, overrides, spec), ranks, path, spec)
        topology, used = sized.built
    idle, of_key = [], {}
    for key in overrides:
        name = key.partition(".")[0]
        if name in document["levels"] and name not in used:
            idle.append(f"{key} changed nothing: {topology.accelerators:,} accelerators need no {name}")
        elif key != "accelerators":
            others = {k: v for k, v in overrides.items() if k != key}
            try:
                other = _sized(_overridden(document, others, spec), ranks, path, spec)
                same = sized.same(other)
                if not same and _keeps_cables(key, sized, other):
                    of_key[key] = _links_of(key, sized, topology)
            except InputError:
                continue  # without this override nothing could be built: it changed something
            if same:
                idle.append(f"{key}={overrides[key]} changed nothing")
    return replace(topology, findings=(*topology.findings, *idle), links_of_key=of_key)


def _keeps_cables(key: str, sized: _Sized, other: _Sized) -> bool:
    """Is a key one that changes what links give, and not how many there are and between whom?"""
    field = key.rpartition(".")[2]
    if field != "bandwidth":
        return field in ("latency", "efficiency")
    return sized.same_cables(other)  # bandwidths decide how many switches a tier needs


def _links_of(key: str, sized: _Sized, topology: Topology) -> tuple[int, ...]:
    """The levels of links (``Topology.level_names``) that a key of a level speaks of."""
    name = key.partition(".")[0]
    label = sized.levels[name].links or name if name in sized.levels else ""
    found = [i for i, known in enumerate(topology.level_names) if known == label or known.startswith(f"{label} ")]
    return tuple(found) if label else ()


def _seeded(overrides: Mapping[str, str], document: Mapping[str, Any], seed: int | None) -> dict[str, str]:
    hashed = overrides.get("routing", document.get("routing")) == "ecmp"
    return ({"seed": str(seed)} if hashed and seed is not None else {}) | dict(overrides)


def _sized(document: dict[str, Any], ranks: int | None, path: Path, spec: str) -> _Sized:
    file, levels = decode(document, spec)
    if ranks is None:
        with located(spec):
            ranks = file.accelerators or min(_SHOWN, file.largest or _SHOWN, fabric.fixed_size(levels) or _SHOWN)
    wanted = file.accelerators or ranks
    if wanted < ranks:
        raise InputError(f"accelerators is {wanted:,}, the job needs {ranks:,}", source=spec, place="accelerators")
    if file.largest is not None and wanted > file.largest:
        raise InputError(
            f"the topology holds {file.largest:,} accelerators, the job needs {wanted:,}",
            source=spec,
            place="largest",
            remedy=f"--set largest={wanted} builds what does not exist; or take another topology",
        )
    return _Sized(file, levels, wanted, path, spec)


@contextmanager
def located(source: str) -> Iterator[None]:
    """Errors inside are told with the name of this file."""
    try:
        yield
    except InputError as error:
        error.source = source
        raise


def _same(a: Topology, b: Topology) -> bool:
    """Do two topologies give equal times? Links are compared, and the routes of a sample of pairs."""
    fields = ("accelerators", "links", "device", "power", "tuning")
    if any(getattr(a, field) != getattr(b, field) for field in fields):
        return False
    columns = ("link_src", "link_dst", "capacity", "latency", "domain", "level_names", "cables")
    if not all(np.array_equal(getattr(a, column), getattr(b, column)) for column in columns):
        return False
    src, dst = np.random.default_rng(0).integers(0, a.accelerators, (2, _SAMPLE))
    routes = [merge(t.route(src, dst), t.links) for t in (a, b)]
    return all(np.array_equal(getattr(routes[0], column), getattr(routes[1], column)) for column in ("link", "share"))


def _graph_routing(overrides: Mapping[str, str], source: str) -> imports.GraphRouting:
    known = imports.GraphRouting.__struct_fields__
    unknown = next((key for key in overrides if key not in known), None)
    if unknown is not None:
        raise InputError(f"a graph file has no key {unknown!r} to set", source=source, remedy=_meant(unknown, known))
    routing: imports.GraphRouting = convert(dict(overrides), imports.GraphRouting, source=source)
    return routing


def _idle_keys(routing: imports.GraphRouting, overrides: Mapping[str, str]) -> list[str]:
    """Settings of a graph that are as they would be, or that only hashed flows would heed."""
    plain = imports.GraphRouting()
    return [
        key for key in overrides
        if getattr(routing, key) == getattr(plain, key) or (key != "routing" and not routing.flows)
    ]  # fmt: skip


def _document(path: Path, spec: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """A file of levels, with what it takes over from its ``base``."""
    document = read_yaml(path, spec)
    base = document.pop("base", None)
    if base is None:
        return document
    if not isinstance(base, str) or base in seen:
        raise InputError("goes round in a circle" if base in seen else "is not a name", source=spec, place="base")
    near = path.parent / base
    try:
        parent = _document(near if near.is_file() else _find(base), base, (*seen, base))
    except InputError as error:
        raise InputError(f"{base}: {error.reason}", source=spec, place="base", remedy=error.remedy) from None
    merged = parent | document
    for key in ("levels", "sources"):
        above, own = parent.get(key, {}), document.get(key, {})
        if isinstance(above, dict) and isinstance(own, dict):
            merged[key] = above | {
                name: above[name] | value if isinstance(value, dict) and isinstance(above.get(name), dict) else value
                for name, value in own.items()
            }
    return merged


def decode(document: dict[str, Any], source: str) -> tuple[TopologyFile, dict[str, Level]]:
    """A file of levels as structs, each level as its kind. Raises InputError naming ``source`` and the place."""
    file: TopologyFile = convert(document, TopologyFile, source=source)
    if not file.levels:
        raise InputError("no level", source=source, place="levels")
    levels: dict[str, Level] = {}
    for name, fields_ in file.levels.items():
        kind = str(fields_.get("kind", ""))
        if kind not in LEVELS:
            raise InputError(
                f"kind {kind!r} is unknown; known: {', '.join(LEVELS)}" if kind else "kind is missing",
                source=source,
                place=f"levels.{name}",
            )
        levels[name] = convert(fields_, LEVELS[kind], source=source, place=f"levels.{name}", dec_hook=decode_quantity)
    return file, levels


def _overridden(document: dict[str, Any], overrides: Mapping[str, str], source: str) -> dict[str, Any]:
    """The document with ``--set`` values written into a copy."""
    document = deepcopy(document)
    levels = document.get("levels")
    levels = levels if isinstance(levels, dict) else {}
    known = [*_TOP_KEYS, *(f"{name}.{key}" for name, level in levels.items() for key in _keys(level))]
    for key, text in overrides.items():
        words = [_FLAG_WORDS.get(word.lower(), word) if key.rpartition(".")[2] in FLAGS else word
                 for word in text.split(",")]  # fmt: skip
        value = words if len(words) > 1 else words[0]
        if key not in known:
            raise InputError(f"no key {key!r} to set", source=source, remedy=_meant(key, known))
        name, _, field = key.partition(".")
        if field:
            levels[name][field] = value
        else:
            document[name] = value
    return document


def _meant(key: str, known: Sequence[str]) -> str:
    """The key that is spelt much like one that there is not, or those of all levels, or else all there are."""
    close = [name for name in known if name.endswith(f".{key}")] or get_close_matches(key, known, 1, _ALIKE)
    return f"did you mean {' or '.join(close)}?" if close else f"known keys: {', '.join(known)}"


def _keys(level: object) -> list[str]:
    kind = LEVELS.get(str(level.get("kind"))) if isinstance(level, dict) else None
    return [] if kind is None else [field for field in kind.__struct_fields__ if field != "links"]


def _preset_names() -> list[str]:
    return [name for name in assets.names(_KIND, SUFFIXES) if name not in _NOT_TOPOLOGIES]


def _find(spec: str) -> Path:
    known = ", ".join(Path(name).stem for name in _preset_names())
    if spec.removesuffix(".yaml") == "devices":
        raise InputError("holds devices, not a topology", source=spec, remedy=f"known topologies: {known}")
    try:
        path = assets.find(_KIND, spec, SUFFIXES)
    except InputError:
        raise InputError("no such topology", source=spec, remedy=f"known topologies: {known}, or a file") from None
    if path.is_dir():
        raise InputError("is a folder, not a topology file", source=spec)
    return path
