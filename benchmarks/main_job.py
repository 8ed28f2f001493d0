"""CPU seconds of the main job, whole processes: `emu run` on the shipped trace and the small commands.

    python benchmarks/main_job.py [--repeat N]

Targets: `emu run --topo fattree --trace llama.json` 2 s, `emu --help` 0.3 s, `emu topo list` and `emu view --plain`
0.5 s of CPU. Times are user + system of the child, best and median of N runs; ratios are better than absolutes on a
shared machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def cpu_seconds(arguments: list[str]) -> float:
    """User and system seconds of one run of ``emu``; the output is thrown away."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "emulator", *arguments], check=True, stdout=subprocess.DEVNULL, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    )
    with tempfile.TemporaryDirectory() as folder:
        result = str(Path(folder) / "r.json")
        run = ["run", "--topo", "fattree", "--trace", "llama.json"]
        commands = {
            "emu --help": (["--help"], 0.3),
            "emu topo list": (["topo", "list"], 0.5),
            "emu run (fattree, llama.json)": ([*run, "--json", result], 2.0),
            "emu run --topo torus": (["run", "--topo", "torus", "--trace", "llama.json"], 2.0),
            "emu run --no-fold": ([*run, "--no-fold"], None),
            "emu view --plain": (["view", result, "--plain"], 0.5),
        }
        print(f"{'command':<32}{'best s':>8}{'median s':>10}{'target s':>10}")
        for name, (arguments, target) in commands.items():
            seconds = [cpu_seconds(arguments) for _ in range(repeat + 1)][1:]
            goal = "-" if target is None else f"{target:.1f}"
            print(f"{name:<32}{min(seconds):>8.2f}{statistics.median(seconds):>10.2f}{goal:>10}")


if __name__ == "__main__":
    main()
