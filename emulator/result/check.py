"""Whether the parts of a result fit together: a file may have been edited, cut or made by something else."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.errors import InputError
from emulator.result.plausible import implausible
from emulator.result.schema import RankClass, Result
from emulator.result.tables import Labels, OpTable, Timeline

Column = np.ndarray[Any, Any]


def check(result: Result, source: str) -> None:
    """Raise InputError unless columns of one table are equally long, every number points at something, and what adds up
    does (:mod:`.plausible`).
    """
    try:
        _positive("step_seconds", result.step_seconds)
        for i, table in enumerate(result.programs):
            _check_program(f"programs[{i}]", table)
        _check_ranks(result.ranks, len(result.programs))
        for i, line in enumerate(result.timeline):
            place = f"timeline[{i}]"
            _below(f"{place}.rank_class", line.rank_class, len(result.ranks))
            rows = len(result.programs[result.ranks[line.rank_class].program].flops)
            _check_timeline(place, line, rows)
        _check_rest(result)
        for place, reason in implausible(result):
            raise _Misfit(place, reason)
    except _Misfit as misfit:
        raise InputError(misfit.reason, source=source, place=misfit.place) from None


class _Misfit(Exception):
    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        self.reason = reason


def _check_program(place: str, table: OpTable) -> None:
    rows = len(table.flops)
    for field in table.__struct_fields__:
        value = getattr(table, field)
        if value is None:
            continue
        if isinstance(value, Labels):
            _long(f"{place}.{field}.codes", value.codes, rows)
            _inside(f"{place}.{field}.codes", value.codes, len(value.values))
        elif field != "deps":
            _long(f"{place}.{field}", value, rows + (field == "deps_ptr"))
    _inside(f"{place}.deps", table.deps, rows)
    pointers = table.deps_ptr
    if pointers[0] != 0 or pointers[-1] != len(table.deps) or (np.diff(pointers) < 0).any():
        raise _Misfit(f"{place}.deps_ptr", "does not rise from 0 to the number of deps")


def _check_ranks(ranks: list[RankClass], programs: int) -> None:
    for i, line in enumerate(ranks):
        if line.rank_class != i:
            raise _Misfit(f"ranks[{i}].rank_class", f"classes are numbered from 0, so this is {i}")
        _below(f"ranks[{i}].program", line.program, programs)


def _check_timeline(place: str, line: Timeline, rows: int) -> None:
    _inside(f"{place}.op", line.op, rows)
    for field in ("ready", "start", "transfer_start", "end", "held_by", "arrived_last"):
        _long(f"{place}.{field}", getattr(line, field), len(line.op))
    for field in ("start", "end"):
        if not np.isfinite(getattr(line, field)).all():
            raise _Misfit(f"{place}.{field}", "a time is missing")
    if (line.end < line.start).any():
        raise _Misfit(f"{place}.end", "an op ends before it starts")


def _check_rest(result: Result) -> None:
    path = result.path
    if path is not None:
        steps = len(path.op)
        for field in ("rank_class", "what", "start", "end", "repeats"):
            value = getattr(path, field)
            _long(f"critical_path.{field}", value.codes if isinstance(value, Labels) else value, steps)
        _inside("critical_path.what", path.what.codes, len(path.what.values))
        _inside("critical_path.rank_class", path.rank_class, len(result.ranks))
        rows = np.array([len(result.programs[ranks.program].flops) for ranks in result.ranks], dtype=np.int64)
        if steps and (path.op >= rows[path.rank_class]).any():
            raise _Misfit("critical_path.op", "names a row that its program lacks")
    for i, load in enumerate(result.link_loads):
        _long(f"link_loads[{i}].rate", load.rate, len(load.time))
        if load.transfers is not None:
            _long(f"link_loads[{i}].transfers", load.transfers, len(load.time))
    for i, rate in enumerate(result.compute_rates):
        _below(f"compute_rates[{i}].rank_class", rate.rank_class, len(result.ranks))
        _long(f"compute_rates[{i}].rate", rate.rate, len(rate.time))
        if not len(rate.time) or rate.time[0] != 0 or (np.diff(rate.time) < 0).any():
            raise _Misfit(f"compute_rates[{i}].time", "does not rise from 0")
    for i, use in enumerate(result.memory):
        _below(f"memory[{i}].rank_class", use.rank_class, len(result.ranks))
        _long(f"memory[{i}].bytes", use.bytes, len(use.time))


def _positive(place: str, value: float) -> None:
    if not value >= 0:
        raise _Misfit(place, f"{value} is not a time")


def _long(place: str, column: Column, rows: int) -> None:
    if len(column) != rows:
        raise _Misfit(place, f"{len(column)} values where {rows} are due")


def _below(place: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        raise _Misfit(place, f"{value} is not one of the {end} there are")


def _inside(place: str, column: Column, end: int) -> None:
    if column.size and not (column.min() >= 0 and column.max() < end):
        worst = int(column.min() if column.min() < 0 else column.max())
        _below(place, worst, end)
