"""Recording torch: a real job (:mod:`.real`), a fake world (:mod:`.fake`) or a script of one's own (:mod:`.api`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulator.capture.api import Recorder as Recorder
    from emulator.capture.api import record as record

__all__ = ["Recorder", "record"]


def __getattr__(name: str) -> Any:
    """torch is imported when something is recorded, not when options are checked."""
    if name in __all__:
        from emulator.capture import api  # noqa: PLC0415

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
