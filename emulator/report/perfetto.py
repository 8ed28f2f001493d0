"""A result as a trace for Perfetto or chrome://tracing (the Trace Event Format, JSON).

Rank classes are processes and streams are threads; ops that run on one stream at the same time (parts of a batch) get
threads of their own, since slices of a thread must nest. Arrows lead from the participant that came last to the others
(from a send to its receive). Times are in microseconds, as the format asks, and whole nanoseconds: Perfetto rounds
starts and lengths to nanoseconds one by one, and drops a slice that then reaches into the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator import files
from emulator.report.critical import messages
from emulator.report.history import History, history_of
from emulator.report.ranks import class_name
from emulator.result.schema import Result
from emulator.result.tables import COMMUNICATION, OpTable, Timeline

Event = dict[str, Any]
_LINKS_PID = 1_000_000  # beyond any rank class
_TAGS = ("layer", "microbatch", "stage")


def write(result: Result, path: Path | str) -> None:
    """Write the trace (gzipped if the name ends in ``.gz``). Raises InputError if it cannot be written."""
    data = encode(result)
    files.write_bytes(path, files.packed(path, data))


def encode(result: Result) -> bytes:
    """The trace as JSON."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "step_seconds": result.step_seconds,
            "world_size": result.world_size,
            "model": result.trace.model,
            "topology": result.topology.name,
        },
        "traceEvents": list(events(result)),
    }
    return msgspec.json.encode(document) + b"\n"


def events(result: Result) -> Iterator[Event]:
    """All events: names of processes and threads, slices, arrows, counters."""
    place: dict[tuple[int, int], int] = {}  # (class, row) -> thread
    threads: dict[int, int] = {}
    for ranks in result.ranks:
        yield _meta("process_name", ranks.rank_class, 0, class_name(ranks))
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": ranks.rank_class,
            "args": {"sort_index": ranks.rank_class},
        }
    for line in result.timeline:
        pid = line.rank_class
        table = result.programs[result.ranks[pid].program]
        start, end = _nanoseconds(line.start), _nanoseconds(line.end)
        for lane, rows in enumerate(_lanes(start, end)):
            tid = threads[pid] = threads.get(pid, 0) + 1
            yield _meta("thread_name", pid, tid, line.stream if lane == 0 else f"{line.stream} ({lane + 1})")
            for i in rows:
                place[pid, int(line.op[i])] = tid
                yield from _slices(table, line, i, (start[i], end[i]), pid, tid)
    yield from _arrows(history_of(result), place)
    yield from _counters(result)


def _nanoseconds(times: NDArray[np.float64]) -> list[int]:
    whole: list[int] = np.rint(times * 1e9).astype(np.int64).tolist()
    return whole


def _meta(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _lanes(start: list[int], end: list[int]) -> list[list[int]]:
    """Positions of a timeline in lanes in which no two spans overlap; times in nanoseconds."""
    lanes: list[list[int]] = []
    free: list[int] = []
    for i in np.lexsort((end, start)).tolist():
        lane = next((k for k, moment in enumerate(free) if moment <= start[i]), len(free))
        if lane == len(free):
            lanes.append([])
            free.append(0)
        lanes[lane].append(i)
        free[lane] = end[i]
    return lanes


def _slices(table: OpTable, line: Timeline, i: int, lasts: tuple[int, int], pid: int, tid: int) -> Iterator[Event]:
    """The slice of an op, and inside it the wait for participants; ``lasts``: from and to, nanoseconds."""
    row = int(line.op[i])
    start, end = lasts
    kind = table.kind[row]
    if line.end[i] <= line.start[i] and kind not in COMMUNICATION:
        return  # waits and memory events take no time
    arguments: Event = {"kind": kind}
    for name in ("op_class", "phase", "module", "group", "collective", "algorithm", "peer", "time_source"):
        if text := getattr(table, name)[row]:
            arguments[name] = text
    arguments |= {name: int(getattr(table, name)[row]) for name in _TAGS if getattr(table, name)[row] >= 0}
    arguments |= {name: float(getattr(table, name)[row]) for name in ("bytes", "flops") if getattr(table, name)[row]}
    name = table.name[row] or kind
    category = "communication" if kind in COMMUNICATION else kind
    yield _slice(name, category, pid, tid, start, end, arguments)
    if line.transfer_start[i] > line.start[i]:
        arrived = min(_nanoseconds(line.transfer_start[i : i + 1])[0], end)
        yield _slice("wait for participants", "wait", pid, tid, start, arrived, {})


def _slice(name: str, category: str, pid: int, tid: int, start: int, end: int, arguments: Event) -> Event:
    return {
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start / 1000,
        "dur": (end - start) / 1000, "args": arguments,
    }  # fmt: skip


def _arrows(history: History, place: dict[tuple[int, int], int]) -> Iterator[Event]:
    """Arrows of every message that has more than one participant in the result.

    Perfetto ties an end of an arrow to the slice that is open then on its thread. An arrow arrives a nanosecond before
    the end, so that this is not the next one (after a transfer that takes no time it is).
    """
    number = 0
    for members in messages(history):
        first = history.last_arriver(members[0])
        first = first if first in members else members[0]
        rank = history.ranks[first[0]]
        leaves, ends = _nanoseconds(np.array([rank.transfer[first[1]], rank.end[first[1]]]))
        arrives = max(leaves, ends - 1)
        for other in members:
            if other == first or rank.table.kind[first[1]] == history.ranks[other[0]].table.kind[other[1]] == "recv":
                continue
            number += 1
            common = {"cat": "communication", "name": rank.table.name[first[1]] or "message", "id": number}
            yield {"ph": "s", **common, "pid": first[0], "tid": place[first], "ts": leaves / 1000}
            yield {"ph": "f", "bp": "e", **common, "pid": other[0], "tid": place[other], "ts": arrives / 1000}


def _counters(result: Result) -> Iterator[Event]:
    """Load of links and bytes of memory over time, where the result has them."""
    if result.link_loads:
        yield _meta("process_name", _LINKS_PID, 0, "links")
    for load in result.link_loads:
        for time, rate in zip(_nanoseconds(load.time), load.rate.tolist(), strict=True):
            yield {
                "ph": "C", "name": load.link, "pid": _LINKS_PID, "ts": time / 1000, "args": {"GB/s": rate / 1e9},
            }  # fmt: skip
    for use in result.memory:
        for time, size in zip(_nanoseconds(use.time), use.bytes.tolist(), strict=True):
            yield {
                "ph": "C", "name": f"memory: {use.category}", "pid": use.rank_class, "ts": time / 1000,
                "args": {"bytes": size},
            }  # fmt: skip
