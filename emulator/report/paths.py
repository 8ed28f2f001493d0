"""The report's part on what decides the length of the step: critical path, slack, stragglers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import RenderableType

from emulator.report import figures
from emulator.report.critical import composition, kind_key, slack
from emulator.report.history import history_of
from emulator.report.kinds import kind_of_group
from emulator.report.tables import Column, shortened, table
from emulator.result.schema import Result

ROWS_SHOWN = 12
LAYERS_SHOWN = 5
STRAGGLERS_SHOWN = 6
SLACK_ROWS = 200_000  # ops in the result up to which slack is worked out: some seconds of Python per million
_LONGER = 1.2  # times the median layer: only then layers are listed
_NOTABLE = 0.001  # of the step: stretches, waiting or slack below that are left out


def paths(result: Result, width: int) -> Iterator[RenderableType]:
    """Tables of the critical path by what it is and by layer, and of what could slip; nothing without a path."""
    if result.path is None or not len(result.path.op) or not result.step_seconds:
        return
    found = composition(result, kind_key)
    shown = [entry for entry in found if entry[1] >= _NOTABLE * result.step_seconds][:ROWS_SHOWN]
    over = levels_of_kinds(result)
    rest = sum(seconds for _, seconds in found) - sum(seconds for _, seconds in shown)
    rows = [*shown, *([("the rest", rest)] if len(found) > len(shown) else [])]
    columns = [
        Column("what", [name for name, _ in rows], left=True),
        Column("time", [figures.seconds(seconds) for _, seconds in rows]),
        Column("of the step", [figures.percent(seconds, result.step_seconds) for _, seconds in rows]),
        Column("busiest link level", [over.get(name.split(" ")[0], "") for name, _ in rows], 2, left=True),
    ]
    note = "The chain of ops and transfers, across ranks, that decides the step; its parts add up to the step."
    by_layer = [(name, seconds) for name, seconds in composition(result, _layer_key) if name]
    layers = by_layer[:LAYERS_SHOWN]
    if len(layers) > 1 and layers[0][1] > _LONGER * float(np.median([seconds for _, seconds in by_layer])):
        note += " Longest layers: " + ", ".join(f"{name} {figures.seconds(seconds)}" for name, seconds in layers) + "."
    yield table("Critical path", columns, width, note)
    if sum(len(program.flops) for program in result.programs) <= SLACK_ROWS:
        yield from _slack(result, width)


def stragglers(result: Result, width: int) -> Iterator[RenderableType]:
    """A table of who came last to collectives and what it cost; nothing if nobody waited much."""
    whole = result.step_seconds * result.world_size
    classes = [(ranks, ranks.lateness) for ranks in result.ranks if ranks.lateness is not None]
    late = [(ranks, own) for ranks, own in classes if own.waiting_seconds > _NOTABLE * whole]
    late = sorted(late, key=lambda pair: -pair[1].waiting_seconds)[:STRAGGLERS_SHOWN]
    if not late:
        return
    columns = [
        Column("ranks", [shortened(ranks.ranks, 24) for ranks, _ in late], left=True),
        Column("collectives\nlast in", [str(own.collectives) for _, own in late]),
        Column("waiting caused\nrank-seconds", [figures.seconds(own.waiting_seconds) for _, own in late], 1),
        Column("of ranks\nx step", [figures.percent(own.waiting_seconds, whole) for _, own in late], 2),
        Column("of it exposed\nrank-seconds", [figures.seconds(own.exposed_seconds) for _, own in late]),
    ]
    note = "Whose arrival let a collective begin while others waited; waiting is summed over all ranks that waited."
    yield table("Who comes last", columns, width, note)


def levels_of_kinds(result: Result) -> dict[str, str]:
    """For each kind of communication the level of the busiest link that carried it."""
    found: dict[str, str] = {}
    for use in sorted(result.links, key=lambda use: -use.utilisation):
        for group in use.groups:
            found.setdefault(kind_of_group(group), use.level)
    return found


def _layer_key(result: Result, rank_class: int, row: int, what: str) -> str:
    layer = int(result.programs[result.ranks[rank_class].program].layer[row])
    return f"layer {layer}" if layer >= 0 and what in ("compute", "transfer") else ""


def _slack(result: Result, width: int) -> Iterator[RenderableType]:
    """What could end later without a longer step, by kind: the least of its ops and the middle one."""
    found: dict[str, list[float]] = {}
    for rank_class, own in enumerate(slack(history_of(result))):
        table_ = result.programs[result.ranks[rank_class].program]
        kinds = np.array(table_.kind.values)[table_.kind.codes]
        ran = np.flatnonzero(~np.isnan(own))
        for row in ran[np.isin(kinds[ran], ("compute", "collective", "send", "recv"))].tolist():
            what = "compute" if kinds[row] == "compute" else "transfer"
            found.setdefault(kind_key(result, rank_class, row, what), []).append(float(own[row]))
    rows = [(name, len(v), min(v), float(np.median(v))) for name, v in found.items()]
    rows = sorted((row for row in rows if row[3] > _NOTABLE * result.step_seconds), key=lambda row: row[2])[:ROWS_SHOWN]
    if not rows:
        return
    columns = [
        Column("what", [name for name, *_ in rows], left=True),
        Column("ops", [str(count) for _, count, _, _ in rows], 1),
        Column("least slack", [figures.seconds(least) for _, _, least, _ in rows]),
        Column("median slack", [figures.seconds(middle) for *_, middle in rows]),
    ]
    note = "How much later ops could end without a longer step, all else as it is; kinds without slack are left out."
    yield table("Slack", columns, width, note)
