"""Everything about one op, and what its rank did around it, as lines of text."""

from __future__ import annotations

import numpy as np

from emulator.report import figures
from emulator.report.kinds import kind_of_group
from emulator.result.schema import Result
from emulator.result.tables import COMMUNICATION, HELD_BY_HOST, HELD_BY_START, OpTable, Timeline
from emulator.view.jumps import Op, partners
from emulator.view.plain import class_title, clipped

_NAMES = 4  # partners and dependencies that are named


def describe(result: Result, op: Op, *, critical: bool = False) -> list[str]:
    """What an op is, when it ran, what held it and with whom it communicated; the most important first."""
    rank_class, row = op
    ranks = result.ranks[rank_class]
    table = result.programs[ranks.program]
    line, at = _place(result, op)
    if line is None:
        return [f"{table.name[row]}: did not run"]
    start, end = float(line.start[at]), float(line.end[at])
    share = figures.percent(end - start, result.step_seconds)
    lines = [
        f"{table.name[row] or table.kind[row]}  {figures.seconds(end - start)} ({share} of the step), "
        f"{figures.seconds(start)} to {figures.seconds(end)}{', on the critical path' if critical else ''}",
        _joined(
            f"{class_title(ranks)}, stream {line.stream}",
            table.module[row],
            table.phase[row].replace("_", " "),
            *(f"{tag} {int(getattr(table, tag)[row])}" for tag in _tags(table, row)),
        ),
    ]
    if table.kind[row] in COMMUNICATION:
        lines += _communication(result, op, table, line, at)
    else:
        lines.append(
            _joined(
                table.op_class[row] or table.kind[row],
                figures.flops(float(table.flops[row])) if table.flops[row] else "",
                f"time {table.time_source[row]}" if table.time_source[row] not in ("", "none") else "",
                _slowed(result, rank_class, start, end) if table.kind[row] == "compute" else "",
            )
        )
    return [*lines, *_holders(table, line, at, row)]


def _slowed(result: Result, rank_class: int, start: float, end: float) -> str:
    for rate in result.compute_rates:
        if rate.rank_class == rank_class:
            extra = float(np.diff(rate.lost(np.array([start, end])))[0])
            return f"{figures.seconds(extra)} of it slowed by communication" if extra > 0 else ""
    return ""


def _tags(table: OpTable, row: int) -> list[str]:
    return [tag for tag in ("layer", "microbatch", "stage") if getattr(table, tag)[row] >= 0]


def _communication(result: Result, op: Op, table: OpTable, line: Timeline, at: int) -> list[str]:
    row = op[1]
    arrived = float(line.transfer_start[at])
    waited, moved = arrived - float(line.start[at]), float(line.end[at]) - arrived
    group, size = table.group[row], int(table.bytes[row])
    rate = f", {figures.rate(size / moved)}" if size and moved > 0 else ""
    last = int(line.arrived_last[at])
    came = f" for ranks {result.ranks[last].ranks}" if 0 <= last < len(result.ranks) and last != op[0] else ""
    others = partners(result, op)
    names = [f"{result.ranks[c].ranks} ({result.programs[result.ranks[c].program].kind[r]})" for c, r in others]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return [
        _joined(
            f"{kind_of_group(group, table.kind[row])} {table.collective[row] or table.kind[row]}",
            f"group {group}" if group else "",
            f"peer {table.peer[row]}" if table.peer[row] else "",
            figures.size(size) if size else "",
            table.algorithm[row],
        ),
        f"waits {figures.seconds(waited)}{came}, transfers {figures.seconds(moved)}{rate}",
        *([f"with ranks {', '.join(names[:_NAMES])}{more}"] if names else []),
    ]


def _holders(table: OpTable, line: Timeline, at: int, row: int) -> list[str]:
    """What the op waited for last, and all it depends on."""
    held = int(line.held_by[at])
    if held == HELD_BY_HOST:
        lines = ["started when the host issued it"]
    elif held == HELD_BY_START:
        lines = ["started with the step"]
    else:
        lines = [f"started after {_named(table, held)}"] if 0 <= held < len(table.flops) else []
    needs = table.deps[table.deps_ptr[row] : table.deps_ptr[row + 1]].tolist()
    if needs:
        more = f" and {len(needs) - _NAMES} more" if len(needs) > _NAMES else ""
        lines.append(f"depends on {', '.join(_named(table, dep) for dep in needs[:_NAMES])}{more}")
    return lines


def _named(table: OpTable, row: int) -> str:
    """An op in a few words, such as ``aten::mm (layer 3)``."""
    tags = " ".join(f"{tag} {int(getattr(table, tag)[row])}" for tag in _tags(table, row)[:1])
    return clipped(table.name[row] or table.kind[row], 32) + (f" ({tags})" if tags else "")


def _place(result: Result, op: Op) -> tuple[Timeline | None, int]:
    """The timeline that an op is in, and its position there."""
    for line in result.timeline:
        if line.rank_class == op[0]:
            at = np.flatnonzero(line.op == op[1])
            if len(at):
                return line, int(at[0])
    return None, -1


def _joined(*facts: str) -> str:
    return ", ".join(fact for fact in facts if fact)
