"""Presets, workloads and traces that come with the project, found by name.

In a checkout they are the top-level folders; in an installed wheel they lie inside the package. A path always wins
over a name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from emulator.errors import InputError

_PACKAGE = Path(__file__).resolve().parent


def folder(kind: str) -> Path:
    """The folder of one kind of asset: ``topologies``, ``workloads`` or ``traces``."""
    installed = _PACKAGE / "assets" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def names(kind: str, suffixes: Sequence[str]) -> list[str]:
    """Names of the assets of one kind that end in one of ``suffixes``, sorted, with their suffix."""
    root = folder(kind)
    return sorted(p.name for p in root.iterdir() if p.name.endswith(tuple(suffixes))) if root.is_dir() else []


def find(kind: str, what: str, suffixes: Sequence[str]) -> Path:
    """The file that ``what`` (a path or a name, with or without suffix) means.

    Raises InputError, listing the known names, if there is none.
    """
    path = located(kind, what, suffixes)
    if path is None:
        known = ", ".join(names(kind, suffixes)) or "none"
        raise InputError(f"no such file or name; known {kind}: {known}", source=what)
    return path


def located(kind: str, what: str, suffixes: Sequence[str]) -> Path | None:
    """As :func:`find`; None if there is no such file."""
    path = Path(what)
    if path.exists():
        return path
    if os.sep not in what:
        for name in [what, *(what + suffix for suffix in suffixes)]:
            candidate = folder(kind) / name
            if candidate.is_file():
                return candidate
    elif path.suffix:  # `workloads/llama.py` typed outside a checkout
        candidate = folder(path.parent.name) / path.name
        if path.parent.name == kind and candidate.is_file():
            return candidate
    return None
