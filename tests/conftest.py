"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Examples are judged by their answers; how long one takes depends on what else the machine does.
settings.register_profile("emu", deadline=None)
settings.load_profile("emu")
