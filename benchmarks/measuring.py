"""How the benchmarks measure: every case in a process of its own, CPU seconds without imports, peak memory."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def machine() -> str:
    """The machine in one line."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    today = time.strftime("%Y-%m-%d")
    return f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, numpy {np.__version__}; {today}"


def peak_mb() -> float:
    """Largest resident memory of this process so far, MB (2^20 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """What ``work`` returns, and its CPU seconds."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def in_child(script: str, case: str, timeout: float) -> dict[str, Any]:
    """Run one case of a script in a process of its own; what it prints last is JSON. {"failed": why} if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, script, "--child", case], capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {timeout:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
