"""Reading a large capture: CPU seconds and peak memory of loading a trace with one program per rank.

    python benchmarks/reading.py [--gigabytes 1] [--kind equal|measured] [--suffix .json|.json.gz|.json.zst]

The file is the shipped Llama step written out op by op for every rank of a growing data axis: `equal` ranks do the
same thing, `measured` ranks have their own duration for every kernel. It lies in a temporary folder and is deleted.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import zstandard

from emulator import assets
from emulator.trace import io
from emulator.trace.check import load
from emulator.trace.expand import rows, templates
from emulator.trace.schema import Op, Trace

MEASURED = b'"duration":0.5'


def written_out(trace: Trace) -> list[Op]:
    """The first program of a trace, every row an op of its own."""
    unrolled, ops = rows(trace, 0), templates(trace).ops
    ptr, deps = unrolled.deps_ptr.tolist(), unrolled.deps.tolist()
    return [
        msgspec.structs.replace(
            ops[template], id=row, deps=deps[ptr[row] : ptr[row + 1]], reads=[], writes=[], storage=0, sources=[],
            duration=0.5 if ops[template].kind == "compute" else None,
        )
        for row, template in enumerate(unrolled.template.tolist())
    ]  # fmt: skip


def pieces(size: float, measured: bool) -> Iterator[bytes]:
    """The text of a capture of about ``size`` bytes, a program at a time."""
    trace = io.read(assets.find("traces", "llama.json", io.SUFFIXES))
    ops = written_out(trace)
    text = b'{"ops":[\n' + b",\n".join(map(msgspec.json.encode, ops)) + b"]}"
    data = max(1, round(size / len(text) / 64))
    head = {
        "schema": "emu-trace/1", "meta": {"source": "synthetic"}, "groups": msgspec.to_builtins(trace.groups),
        "mesh": {"axes": ["copy", *trace.mesh.axes], "shape": [data, *trace.mesh.shape]},
        "ranks": [[1, rank] for rank in range(64 * data)],
    }  # fmt: skip
    yield json.dumps(head).encode()[:-1] + b',\n"programs":['
    parts = text.split(MEASURED)
    rng = np.random.default_rng(1)
    for rank in range(64 * data):
        yield b",\n" if rank else b"\n"
        if measured:
            numbers = [b'"duration":%.9f' % s for s in rng.uniform(1e-6, 1e-3, len(parts) - 1).tolist()]
            yield b"".join(part for pair in zip(parts, [*numbers, b""], strict=True) for part in pair)
        else:
            yield text
    yield b"]}\n"


def write(path: Path, text: Iterator[bytes]) -> int:
    """Write a file piece by piece, compressed as its name says; returns the bytes of text."""
    total = 0
    with path.open("wb") as plain:
        if path.suffix == ".zst":
            file = zstandard.ZstdCompressor(level=3).stream_writer(plain)
        elif path.suffix == ".gz":
            import gzip  # noqa: PLC0415

            file = gzip.GzipFile(fileobj=plain, mode="wb", compresslevel=1)
        else:
            file = plain
        for piece in text:
            file.write(piece)
            total += len(piece)
        file.close()
    return total


def measure(path: Path) -> None:
    """Load a trace and say what it cost; run in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    trace = io.read(path)
    read = time.process_time() - began
    del trace
    began = time.process_time()
    trace = load(path)
    loaded = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ops = sum(len(program.ops) for program in trace.programs)
    print(
        f"{trace.world_size} ranks -> {len(trace.programs)} programs of {ops:,} ops; read {read:.1f} CPU s, read and"
        f" checked {loaded:.1f} CPU s, peak {peak / 1024:.0f} MB ({before / 1024:.0f} MB before)"
    )


def main() -> None:
    """Write the file, load it in a child process, delete it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--kind", choices=["equal", "measured"], default="measured")
    parser.add_argument("--suffix", choices=io.SUFFIXES, default=".json")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        measure(options.load)
        return
    print(f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"capture{options.suffix}"
        total = write(path, pieces(options.gigabytes * 1e9, options.kind == "measured"))
        print(f"{options.kind}: {total / 1e9:.2f} GB of text, {path.stat().st_size / 1e9:.2f} GB on disk", flush=True)
        subprocess.run([sys.executable, __file__, "--load", str(path)], check=True, timeout=1200)


if __name__ == "__main__":
    main()
