"""emu: what would my torch training job do on a cluster I do not have?

``emulator.run(trace, topology)`` replays a recorded job and gives a :class:`~emulator.result.schema.Result`;
``emulator.record("t.json")`` and ``emulator.Recorder`` record one from a running torch script (they need torch, the
rest does not).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulator.api import run as run
    from emulator.capture import Recorder as Recorder
    from emulator.capture import record as record
    from emulator.many import run_many as run_many
    from emulator.many import sweep as sweep
    from emulator.result.io import read as read_result
    from emulator.trace.check import load as load_trace

__all__ = ["Recorder", "load_trace", "read_result", "record", "run", "run_many", "sweep"]
__version__ = "0.1.0"

# Looked up when asked for: `import emulator` loads neither torch nor anything else that is slow.
_LAZY = {
    "run": ("emulator.api", "run"),
    "run_many": ("emulator.many", "run_many"),
    "sweep": ("emulator.many", "sweep"),
    "record": ("emulator.capture", "record"),
    "Recorder": ("emulator.capture", "Recorder"),
    "load_trace": ("emulator.trace.check", "load"),
    "read_result": ("emulator.result.io", "read"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, attribute = _LAZY[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
