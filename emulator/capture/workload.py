"""Loading a workload: a module with ``add_arguments``, ``build``, ``batch`` and ``train_step``, and its options."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from emulator import assets
from emulator.errors import InputError
from emulator.trace.schema import Meta

CONTRACT = ("add_arguments", "build", "batch", "train_step")


@dataclass(frozen=True)
class Workload:
    """A workload with its options parsed. ``axes`` are the extents of its mesh, slowest first; along those in ``roles``
    ranks do different work."""

    path: Path
    module: Any
    config: argparse.Namespace
    axes: dict[str, int]
    roles: tuple[str, ...] = ()

    @property
    def world(self) -> int:
        """Number of ranks of the mesh."""
        size = 1
        for extent in self.axes.values():
            size *= extent
        return size

    def meta(self) -> Meta:
        """What the workload says of itself, as the trace's ``meta``."""
        describe = getattr(self.module, "describe", None)
        return Meta(**describe(self.config)) if describe is not None else Meta(model=self.path.stem)


def find(name: str) -> Path:
    """The file of a script or workload: a path, or the name of one that comes with the project."""
    return assets.find("workloads", name, (".py",))


def is_workload(path: Path) -> bool:
    """Whether a script keeps the workload contract. Told from its text: scripts may do anything when imported."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"not a Python script ({error})", source=str(path)) from None
    except OSError as error:
        raise InputError(str(error.strerror), source=str(path)) from None
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return defined.issuperset(CONTRACT)


def load(path: Path, arguments: Sequence[str]) -> Workload:
    """Import a workload and parse its options. Raises InputError on wrong options or an impossible layout."""
    name = f"emulator_workload_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError("not a Python module", source=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # modules beside it are found as by a script
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    parser = _Parser(prog=path.name, description=(module.__doc__ or "").partition("\n")[0])
    module.add_arguments(parser)
    parser.source = str(path)
    config = parser.parse_args(list(arguments))
    mesh_axes, roles = getattr(module, "mesh_axes", None), getattr(module, "roles", None)
    axes = mesh_axes(config) if mesh_axes is not None else {}
    different = tuple(roles(config)) if roles is not None else ()
    return Workload(path, module, config, axes, different)


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the process."""

    source = ""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, source=self.source, remedy=f"options: {self.prog} --help")
