"""Python's cyclic garbage collector, out of the way while much is made that holds no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """No cyclic collections inside.

    A replay makes millions of small objects and no cycles, and the collector looks through all of them again and
    again: half of the time at 2,048 unfolded ranks.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
