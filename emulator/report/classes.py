"""The report's part on rank classes: bars, and the partition in figures with what its lines consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from emulator.report import figures
from emulator.report.bubbles import CAUSES
from emulator.report.palette import BARS, COMPUTE, legend
from emulator.report.ranks import class_name
from emulator.report.tables import Column, in_groups, shortened, table
from emulator.result.schema import Partition, RankClass, Result

CLASSES_SHOWN = 8
_ROUNDING = 1e-12  # of the step: less than that is what rounding leaves of nothing

_LINES: tuple[tuple[str, str], ...] = (
    ("compute", "compute"),
    ("exposed_transfer", "exposed transfer"),
    ("exposed_wait", "exposed wait"),
    ("host", "host"),
    ("idle_before", "idle before first op"),
    ("idle_after", "idle after last op"),
    ("idle_dependency", "idle, dependency"),
)
Figure = Callable[[RankClass, Partition], float | None]


@dataclass(frozen=True)
class _Row:
    """One row of the table: its label and the seconds of each class (None: a dash)."""

    label: str
    seconds: Figure


def bars(result: Result, width: int) -> Text:
    """One stacked bar per rank class, as long as the step."""
    text = Text("\nWhere the step goes", style="bold")
    text.append(f" (each bar is the step, {figures.seconds(result.step_seconds)})\n", "not bold")
    shown = _shown(result)
    names = [class_name(ranks) for ranks in shown]
    label = min(max(map(len, names)), max(8, width // 3))
    met: set[str] = set()
    for ranks, name in zip(shown, names, strict=True):
        shares = _fractions(ranks, result.step_seconds)
        met |= {part for part, share in shares.items() if share > 0}
        text.append(f"{shortened(name, label):<{label}} ", "not bold")
        text.append_text(stacked_bar(shares, width - label - 1))
        text.append("\n")
    text.append_text(legend([BARS[name] for name in BARS if name in met], width))
    hidden = len(result.ranks) - len(shown)
    if hidden:
        text.append(f"\n{f'{hidden} more'} not shown: see `ranks` in the JSON.", "not bold")
    return text


def stacked_bar(fractions: dict[str, float], width: int) -> Text:
    """Parts that add up to one as a bar of exactly ``width`` letters; what is left by rounding down goes to the parts
    that lost most by it.
    """
    ideal = {name: fraction * width for name, fraction in fractions.items()}
    cells = {name: int(value + 1e-9) for name, value in ideal.items()}
    for name in sorted(ideal, key=lambda name: cells[name] - ideal[name])[: max(0, width - sum(cells.values()))]:
        cells[name] += 1
    bar = Text()
    for name, number in cells.items():
        letter, _, style = BARS[name]
        bar.append(letter * number, style)
    return bar


def partitions(result: Result, width: int) -> Iterator[RenderableType]:
    """The partition in figures: a row per line, a column per class, in as many tables as the width asks for."""
    step = result.step_seconds
    classes = [(ranks, ranks.partition) for ranks in _shown(result) if ranks.partition]
    rows = list(_rows([ranks for ranks, _ in classes]))
    names = [*(row.label for row in rows), "overlap"]
    columns = []
    for ranks, found in classes:
        cells = [_cell(row.seconds(ranks, found), step) for row in rows]
        cells.append("no transfer" if found.overlap is None else figures.percent(found.overlap))
        columns.append(Column(f"{figures.several(ranks.count, 'rank')}\n{shortened(ranks.ranks, 18)}", cells))
    label = Column("", names, left=True)
    note = "Percentages are of the step; overlap is hidden transfer, % of all transfer."
    groups = list(in_groups(label, columns, width))
    for i, group in enumerate(groups, 1):
        yield table("Rank classes", group, width, note if i == len(groups) else "")


def _rows(classes: list[RankClass]) -> Iterator[_Row]:
    """The rows that these classes need: lines, each followed by what it consists of where that is known."""
    for name, label in _LINES:
        yield _Row(label, _line(name))
        if name == "compute":
            yield from (_Row(f"  {_phase_label(phase)}", _phase(phase)) for phase in _phases(classes))
            if any(ranks.partition and ranks.partition.slowed_seconds for ranks in classes):
                yield _Row("  of it slowed", _line("slowed"))
        elif name in ("exposed_transfer", "exposed_wait"):
            part = name.removeprefix("exposed_")
            yield from (_Row(f"  {kind}", _kind(kind, part)) for kind in _kinds(classes, part))
    yield _Row("sum", lambda _, found: sum(getattr(found, f"{name}_seconds") for name, _ in _LINES))
    yield _Row("", lambda _ranks, _found: None)
    for name in ("hidden_transfer", "hidden_wait", "communication"):
        yield _Row(name.replace("_", " "), _line(name))
    if any(ranks.bubble_seconds is not None for ranks in classes):
        yield _Row("bubble", lambda ranks, _: ranks.bubble_seconds)
    if any(ranks.bubble is not None for ranks in classes):
        yield from (_Row(f"  {cause}", _cause(cause)) for cause in CAUSES)


def _line(name: str) -> Figure:
    return lambda _, found: float(getattr(found, f"{name}_seconds"))


def _phase(phase: str) -> Figure:
    return lambda ranks, _: ranks.compute_phases.get(phase, 0.0)


def _kind(kind: str, part: str) -> Figure:
    return lambda ranks, _: sum(getattr(e, f"{part}_seconds") for e in ranks.exposed if e.kind == kind)


def _cause(cause: str) -> Figure:
    return lambda ranks, _: None if ranks.bubble is None else float(getattr(ranks.bubble, f"{cause}_seconds"))


def _phases(classes: list[RankClass]) -> list[str]:
    """Phases that took time, in the order of the legend; none if there is nothing to tell apart."""
    met = {phase for ranks in classes for phase, seconds in ranks.compute_phases.items() if seconds}
    ordered = [*(phase for phase in COMPUTE if phase in met), *sorted(met - set(COMPUTE))]
    return [] if ordered == [""] else ordered


def _phase_label(phase: str) -> str:
    return phase.replace("_", " ") or "without a phase"


def _kinds(classes: list[RankClass], part: str) -> list[str]:
    total: dict[str, float] = {}
    for ranks in classes:
        for entry in ranks.exposed:
            total[entry.kind] = total.get(entry.kind, 0.0) + getattr(entry, f"{part}_seconds")
    return sorted((kind for kind, seconds in total.items() if seconds), key=lambda kind: (-total[kind], kind))


def _cell(seconds: float | None, step: float) -> str:
    if seconds is None:
        return ""
    seconds = seconds if abs(seconds) > _ROUNDING * step else 0.0
    return f"{figures.seconds(seconds):>8} {figures.percent(seconds, step):>7}"


def _shown(result: Result) -> list[RankClass]:
    return [ranks for ranks in result.ranks if ranks.partition][:CLASSES_SHOWN]


def _fractions(ranks: RankClass, step_seconds: float) -> dict[str, float]:
    """Shares of the step by what a bar shows: compute by phase, the other lines, idle for the rest."""
    found = ranks.partition
    if found is None or not step_seconds:
        return {"idle": 1.0}
    slowed = ranks.slowed_phases
    phases = {
        phase: max(0.0, seconds - slowed.get(phase, 0.0))
        for phase, seconds in ranks.compute_phases.items()
        if phase in COMPUTE
    }
    shares = {phase: phases[phase] for phase in COMPUTE if phases.get(phase)}
    rest = found.compute_seconds - found.slowed_seconds - sum(shares.values())
    shares[""] = shares.get("", 0.0) + max(0.0, rest)
    shares["slowed"] = found.slowed_seconds
    for name in ("exposed_transfer", "exposed_wait", "host"):
        shares[name] = getattr(found, f"{name}_seconds")
    shares = {name: seconds / step_seconds for name, seconds in shares.items()}
    return {**shares, "idle": max(0.0, 1.0 - sum(shares.values()))}
