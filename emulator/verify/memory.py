"""Is there room for so many processes?"""

from __future__ import annotations

from pathlib import Path

from emulator.errors import InputError

PROCESS_BYTES = 130e6  # of its own per forked process: measured proportional share 100-120 MB


def available_bytes() -> float:
    """Memory that may still be used: the system's, or less if a control group allows less. inf if nobody says."""
    found = float("inf")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found = float(line.split()[1]) * 1024
    except OSError:
        return found
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            found = min(found, float(limit) - float((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return found


def check_room(processes: int, *, extra_bytes: float = 0.0, source: str = "") -> None:
    """Raise InputError, with both figures, if ``processes`` with ``extra_bytes`` each need more than is free."""
    needed, free = processes * (PROCESS_BYTES + extra_bytes), available_bytes()
    if needed > free:
        raise InputError(
            f"{processes} processes need about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            source=source,
            remedy="fewer ranks or a smaller model",
        )
