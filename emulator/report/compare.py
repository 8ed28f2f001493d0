"""Several results side by side, with their differences from the first.

Lines of the partition are means over all ranks, so that jobs with different classes can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from emulator.report import figures
from emulator.report.bubbles import CAUSES
from emulator.report.critical import composition, kind_key
from emulator.report.pieces import LINES
from emulator.report.tables import Column, in_groups, shortened, table
from emulator.result.schema import RankClass, Result

_NAME = 20
_SHOWN_FROM = 0.0005  # of the first step: lines below that in all results are left out


def render(results: Sequence[Result], names: Sequence[str], *, width: int) -> RenderableType:
    """Results under their names. Differences are of each from the first, in % of the first's step."""
    headers = [shortened(name, _NAME) for name in names]
    blocks: list[RenderableType] = []
    blocks += _facts(results, headers, width)
    blocks += _lines("Where the step goes, mean over ranks", list(_mean_lines(results)), results, headers, width)
    blocks += _lines("Critical path", list(_path_lines(results)), results, headers, width)
    if len(results) > 1:
        blocks.append(Text(f"Differences are from {headers[0]}, in % of its step ({_step(results[0])})."))
    return Group(*blocks)


def _step(result: Result) -> str:
    return figures.seconds(result.step_seconds)


def _facts(results: Sequence[Result], headers: Sequence[str], width: int) -> Iterator[RenderableType]:
    """What was compared: figures that differ in kind, one row each, only where a result has them."""
    base = results[0].step_seconds
    facts: list[tuple[str, Callable[[Result], str]]] = [
        ("step", lambda r: f"{_step(r)}" + ("" if r is results[0] else f" {figures.change(r.step_seconds, base)}")),
        ("tokens/s", lambda r: "-" if r.tokens_per_second is None else figures.count(r.tokens_per_second)),
        ("MFU, % of peak", lambda r: "-" if r.mfu is None else figures.percent(r.mfu)),
        ("ranks", lambda r: str(r.world_size)),
        ("model", lambda r: shortened(r.trace.model or r.trace.file, _NAME)),
        ("topology", lambda r: shortened(_topology(r), _NAME)),
        ("device", lambda r: shortened(r.device.name, _NAME)),
        ("lowering", lambda r: r.device.lowering),
    ]
    rows = [(name, [fact(result) for result in results]) for name, fact in facts]
    rows = [(name, cells) for name, cells in rows if any(cell not in ("", "-") for cell in cells)]
    yield from _side_by_side("Results", rows, headers, width)


def _topology(result: Result) -> str:
    settings = ",".join(f"{key}={value}" for key, value in result.topology.overrides.items())
    return f"{result.topology.name} {settings}".strip()


def _lines(
    title: str,
    rows: list[tuple[str, list[float]]],
    results: Sequence[Result],
    headers: Sequence[str],
    width: int,
) -> Iterator[RenderableType]:
    """Seconds of every result, and how far they are from the first's."""
    base = results[0].step_seconds
    rows = [(name, values) for name, values in rows if max(values) >= _SHOWN_FROM * base]
    if rows:
        yield from _side_by_side(title, [(name, _cells(values, base)) for name, values in rows], headers, width)


def _cells(values: list[float], base: float) -> list[str]:
    def cell(i: int) -> str:
        seconds = f"{figures.seconds(values[i]):>8}"
        return f"{seconds} {figures.change(values[i], values[0], base):>8}" if i else seconds

    return [cell(i) for i in range(len(values))]


def _side_by_side(
    title: str, rows: list[tuple[str, list[str]]], headers: Sequence[str], width: int
) -> Iterator[RenderableType]:
    """A column per result, in as many tables as the width asks for."""
    label = Column("", [name for name, _ in rows], left=True)
    columns = [Column(header, [cells[i] for _, cells in rows]) for i, header in enumerate(headers)]
    for i, group in enumerate(in_groups(label, columns, width)):
        yield table(f"{title}, continued" if i else title, group, width)


def _mean_lines(results: Sequence[Result]) -> Iterator[tuple[str, list[float]]]:
    for name in LINES:
        yield name.replace("_", " "), _means(results, _read("partition", name))
        if name == "compute":
            yield from _by_name(results, _phases)
            yield "  of it slowed", _means(results, _read("partition", "slowed"))
        elif name in ("exposed_transfer", "exposed_wait"):
            yield from _by_name(results, _kinds(name.removeprefix("exposed_")))
    if any(ranks.bubble_seconds is not None for result in results for ranks in result.ranks):
        yield "bubble", _means(results, lambda ranks: ranks.bubble_seconds or 0.0)
        for cause in CAUSES:
            yield f"  {cause}", _means(results, _read("bubble", cause))


def _read(struct: str, name: str) -> Callable[[RankClass], float]:
    """Seconds of a line or cause of a class, 0 where it has none."""
    return lambda ranks: float(getattr(getattr(ranks, struct), f"{name}_seconds", 0.0))


def _phases(ranks: RankClass) -> dict[str, float]:
    return {phase.replace("_", " ") or "without a phase": s for phase, s in ranks.compute_phases.items()}


def _kinds(part: str) -> Callable[[RankClass], dict[str, float]]:
    return lambda ranks: {entry.kind: getattr(entry, f"{part}_seconds") for entry in ranks.exposed}


def _by_name(
    results: Sequence[Result], parts: Callable[[RankClass], dict[str, float]]
) -> Iterator[tuple[str, list[float]]]:
    names = dict.fromkeys(name for result in results for ranks in result.ranks for name in parts(ranks))
    for name in names:
        yield f"  {name}", [_mean(result, _part(parts, name)) for result in results]


def _part(parts: Callable[[RankClass], dict[str, float]], name: str) -> Callable[[RankClass], float]:
    return lambda ranks: parts(ranks).get(name, 0.0)


def _means(results: Sequence[Result], seconds: Callable[[RankClass], float]) -> list[float]:
    return [_mean(result, seconds) for result in results]


def _path_lines(results: Sequence[Result]) -> Iterator[tuple[str, list[float]]]:
    found = [dict(composition(result, kind_key)) for result in results]
    names = sorted({name for own in found for name in own}, key=lambda n: -max(own.get(n, 0.0) for own in found))
    for name in names:
        yield name, [own.get(name, 0.0) for own in found]


def _mean(result: Result, seconds: Callable[[RankClass], float]) -> float:
    """Mean over all ranks."""
    ranks = sum(own.count for own in result.ranks)
    return sum(own.count * seconds(own) for own in result.ranks) / ranks if ranks else 0.0
