"""Topologies by name or file: ``load`` reads the levels, applies ``--set``, checks, and calls the fabric's builder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator import assets
from emulator.errors import InputError
from emulator.topology import clos, explicit, fullmesh, torus
from emulator.topology.document import convert, read_yaml
from emulator.topology.graph import Topology
from emulator.topology.spec import LEVELS, FullMesh, Level, Switch, Tier, TopologyFile, Torus, decode_quantity

_KIND, _SUFFIXES = "topologies", (".yaml", ".json")
_NOT_TOPOLOGIES = {"devices.yaml"}
_TOP_KEYS = ("routing", "accelerators", "largest", "bundled")


def presets() -> list[tuple[str, str]]:
    """Name and one-line description of every preset, sorted."""
    found = []
    for name in _preset_names():
        document = read_yaml(assets.folder(_KIND) / name, name)
        found.append((Path(name).stem, str(document.get("description", ""))))
    return found


def load(spec: str, *, ranks: int, overrides: Mapping[str, str] | None = None) -> Topology:
    """The topology that ``spec`` (preset name, or path to ``.yaml`` levels or ``.json`` node-link graph) means.

    Sized to ``ranks`` accelerators unless the file says otherwise; ``overrides`` are dotted keys of the file
    (``spine.oversubscription``). Raises InputError: no such file or preset, a fault in it, a job that does not fit.
    """
    path = _find(spec)
    if path.suffix == ".json":
        if overrides:
            raise InputError(f"a graph file has no key {next(iter(overrides))!r} to set", source=spec)
        topology = explicit.read(path)
        if ranks > topology.accelerators:
            raise InputError(
                f"the topology holds {topology.accelerators:,} accelerators, the job needs {ranks:,}", source=spec
            )
        return topology
    file, levels = _decode(read_yaml(path, spec), overrides or {}, spec)
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
    try:
        built = _build(file, levels, wanted)
    except InputError as error:
        raise InputError(error.reason, source=spec, place=error.place, remedy=error.remedy) from None
    sources = tuple(f"{name}: {text}" for name, text in file.sources.items())
    return Topology(name=file.name, routing=file.routing, device=file.device, sources=sources, **built)


def _build(file: TopologyFile, levels: Mapping[str, Level], accelerators: int) -> dict[str, Any]:
    """Which builder the kinds of the levels ask for."""
    (first, level), *rest = levels.items()
    if not rest and isinstance(level, Torus):
        return torus.build(first, level, accelerators, called=file.called, routing=file.routing)
    if file.routing != "spread":
        raise InputError(f"routing {file.routing!r} is for a torus or mesh; this fabric spreads", place="routing")
    if not rest and isinstance(level, FullMesh):
        return fullmesh.build(first, level, accelerators, called=file.called)
    switched = {name: lv for name, lv in levels.items() if isinstance(lv, Switch | Tier)}
    tiers = [lv for lv in levels.values() if isinstance(lv, Tier)]
    if len(switched) < len(levels) or len(levels) - len(tiers) > isinstance(level, Switch) or len(tiers) > 3:
        raise InputError(
            "these kinds of level do not go together", place="levels",
            remedy="one torus, one full_mesh, or: one switch at most, then up to three tiers",
        )  # fmt: skip
    return clos.build(switched, accelerators, called=file.called, bundled=file.bundled)


def _decode(
    document: dict[str, Any], overrides: Mapping[str, str], source: str
) -> tuple[TopologyFile, dict[str, Level]]:
    _override(document, overrides, source)
    file: TopologyFile = convert(document, TopologyFile, source=source)
    if not file.levels:
        raise InputError("no level", source=source, place="levels")
    levels: dict[str, Level] = {}
    for name, fields_ in file.levels.items():
        kind = fields_.get("kind")
        if kind not in LEVELS:
            raise InputError(
                f"kind {kind!r} is unknown; known: {', '.join(LEVELS)}" if kind else "kind is missing",
                source=source,
                place=f"levels.{name}",
            )
        levels[name] = convert(fields_, LEVELS[kind], source=source, place=f"levels.{name}", dec_hook=decode_quantity)
    return file, levels


def _override(document: dict[str, Any], overrides: Mapping[str, str], source: str) -> None:
    """Write ``--set`` values into the document in place."""
    if not overrides:
        return
    levels = document.get("levels")
    levels = levels if isinstance(levels, dict) else {}
    known = [*_TOP_KEYS, *(f"{name}.{key}" for name, level in levels.items() for key in _keys(level))]
    for key, text in overrides.items():
        value = text.split(",") if "," in text else text
        if key not in known:
            raise InputError(f"no key {key!r} to set", source=source, remedy=f"known keys: {', '.join(known)}")
        name, _, field = key.partition(".")
        if field:
            levels[name][field] = value
        else:
            document[name] = value


def _keys(level: object) -> list[str]:
    kind = LEVELS.get(str(level.get("kind"))) if isinstance(level, dict) else None
    return [] if kind is None else [field for field in kind.__struct_fields__ if field != "links"]


def _preset_names() -> list[str]:
    return [name for name in assets.names(_KIND, _SUFFIXES) if name not in _NOT_TOPOLOGIES]


def _find(spec: str) -> Path:
    known = ", ".join(Path(name).stem for name in _preset_names())
    if spec.removesuffix(".yaml") == "devices":
        raise InputError("holds devices, not a topology", source=spec, remedy=f"known topologies: {known}")
    try:
        path = assets.find(_KIND, spec, _SUFFIXES)
    except InputError:
        raise InputError("no such topology", source=spec, remedy=f"known topologies: {known}, or a file") from None
    if path.is_dir():
        raise InputError("is a folder, not a topology file", source=spec)
    if path.suffix not in _SUFFIXES:
        raise InputError("a topology file ends in .yaml (levels) or .json (node-link graph)", source=spec)
    return path
