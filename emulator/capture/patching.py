"""Replacing an attribute for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replace an attribute and put back exactly what was there, absence included."""
    missing = object()
    original = vars(owner).get(name, missing)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if original is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
