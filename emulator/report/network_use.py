"""The report's part on the network: communication by group and size, and the hottest links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType

from emulator.report import figures
from emulator.report.tables import Column, shortened, table
from emulator.result.schema import CollectiveUse, LinkUse, Result
from emulator.result.tables import LinkLoad

COLLECTIVES_SHOWN = 20
LINKS_SHOWN = 10
GROUPS_SHOWN = 4  # on one link
WORTH_A_COLUMN = 0.0005  # of the time: what is printed as more than 0.0 %
_TIMES = (
    "seconds", "alone_seconds", "wait_seconds", "own_rank_seconds", "other_ranks_seconds", "slower_links_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """What several rank classes did alike: means over the executions of all their ranks."""

    first: CollectiveUse
    ranks: int
    count: float  # executions per rank
    seconds: float
    alone_seconds: float
    wait_seconds: float
    own_rank_seconds: float
    other_ranks_seconds: float
    slower_links_seconds: float

    @property
    def congestion(self) -> float | None:
        """Part of the time that was lost to others on the same links and to slower links."""
        return max(0.0, self.part(self.seconds - self.alone_seconds) or 0.0) if self.seconds > 0 else None

    def part(self, seconds: float) -> float | None:
        """A part of the time; none where there is no time."""
        return seconds / self.seconds if self.seconds > 0 else None


def collectives(result: Result, width: int) -> RenderableType:
    """A row per kind, group, size and algorithm, the one that transfers longest first."""
    used = sorted(_merged(result), key=lambda row: -row.ranks * row.count * row.seconds)
    shown = used[:COLLECTIVES_SHOWN]
    columns = [
        Column("kind", [row.first.collective for row in shown], left=True),
        Column("group", [row.first.group for row in shown], left=True),
        Column("of", [f"{row.first.group_size:,}" for row in shown], 5),
        Column("by ranks", [f"{row.ranks:,}" for row in shown], 6),
        Column("count", [f"{row.count:.4g}" for row in shown]),
        Column("bytes", [figures.size(row.first.bytes) for row in shown], 1),
        Column("dtype", [row.first.dtype for row in shown], 9, left=True),
        Column("algorithm", [row.first.algorithm for row in shown], 2, left=True),
        Column("time", [figures.seconds(row.seconds) for row in shown]),
        Column("alone", [figures.seconds(row.alone_seconds) for row in shown], 4),
        Column("congestion\n% of time", [_or_dash(row.congestion, figures.percent) for row in shown], 8),
        *_lost_to(shown),
        Column("wait", [figures.seconds(row.wait_seconds) for row in shown], 3),
        Column("algbw", [_rate(row, row.first.algbw_bytes_per_second) for row in shown], 7),
        Column("busbw", [_rate(row, row.first.busbw_bytes_per_second) for row in shown], 1),
    ]
    note = (
        "count: per rank; times are means per execution: from the last arrival to the end, wait before it; alone: on "
        "the idle fabric."
    )
    if len(used) > len(shown):
        note += f" {len(used) - len(shown)} more in the JSON."
    return table("Communication", columns, width, note)


def _lost_to(rows: list[_Row]) -> list[Column]:
    """The columns into which congestion is split: only those in which there is something."""
    parts = {
        "own rank's\nstreams": [row.part(row.own_rank_seconds) for row in rows],
        "other\nranks": [row.part(row.other_ranks_seconds) for row in rows],
        "slower\nlinks": [row.part(row.slower_links_seconds) for row in rows],
    }
    return [
        Column(header, [_or_dash(part, figures.percent) for part in listed], 10)
        for header, listed in parts.items()
        if any(part is not None and part >= WORTH_A_COLUMN for part in listed)
    ]


def _merged(result: Result) -> list[_Row]:
    """Communication of all classes, put together where it is alike."""
    ranks = {own.rank_class: own.count for own in result.ranks}
    alike: dict[tuple[str, str, int, int, str, str], list[CollectiveUse]] = {}
    for use in result.collectives:
        key = (use.collective, use.group, use.group_size, use.bytes, use.dtype, use.algorithm)
        alike.setdefault(key, []).append(use)
    rows = []
    for uses in alike.values():
        weight = np.array([use.count * ranks.get(use.rank_class, 1) for use in uses], dtype=np.float64)
        number = sum(ranks.get(rank_class, 1) for rank_class in {use.rank_class for use in uses})
        times = np.array([[getattr(use, name) for name in _TIMES] for use in uses])
        means = weight @ times / weight.sum() if weight.sum() else np.zeros(len(_TIMES))
        rows.append(_Row(uses[0], number, float(weight.sum()) / number, *means.tolist()))
    return rows


def _rate(row: _Row, of_first: float | None) -> str:
    """A bandwidth at the mean time, where the first had one."""
    if of_first is None or not row.seconds > 0:
        return "-"
    return figures.rate(of_first * row.first.seconds / row.seconds)


def links(result: Result, width: int) -> RenderableType:
    """The busiest links: how much of them was used, by whom, and when they were shared."""
    shown = sorted(result.links, key=lambda use: (-use.utilisation, use.link))[:LINKS_SHOWN]
    loads = [{load.link: load for load in result.link_loads}.get(use.link) for use in shown]
    columns = [
        Column("link", [use.link for use in shown], left=True),
        Column("level", [use.level for use in shown], 2, left=True),
        Column("alike", [f"{use.count:,}" for use in shown], 4),
        Column("capacity", [figures.rate(use.capacity_bytes_per_second) for use in shown], 3),
        Column("carried", [figures.size(use.bytes) for use in shown], 1),
        Column("used", [figures.percent(use.utilisation) for use in shown]),
        Column("in use\n% of time", [_share_of_time(result, load, 1) for load in loads], 6),
        Column("shared\n% of time", [_share_of_time(result, load, 2) for load in loads], 5),
        Column("shared longest", [_longest_shared(load) for load in loads], 7, left=True),
        Column("by", [_by(use, load) for use, load in zip(shown, loads, strict=True)], left=True),
    ]
    note = (
        "used: bytes carried, % of capacity x step; one direction each. in use: a transfer is under way over it; "
        "shared: two or more at once; by: % of its bytes."
    )
    return table("Hottest links", columns, width, note)


def _by(use: LinkUse, load: LinkLoad | None) -> str:
    """The groups on a link, with their parts of its bytes where they are known."""
    if load is None or not load.group_bytes:
        return shortened(", ".join(use.groups), 24)
    whole = sum(load.group_bytes.values())
    parts = [f"{name} {figures.percent(size, whole)}" for name, size in load.group_bytes.items()]
    return ", ".join(parts[:GROUPS_SHOWN]) + (", ..." if len(parts) > GROUPS_SHOWN else "")


def _share_of_time(result: Result, load: LinkLoad | None, least: int) -> str:
    """How long so many transfers or more were on a link, % of the time shown."""
    if load is None or load.transfers is None:
        return "-"
    there = load.transfers[:-1] >= least
    return figures.percent(float(np.diff(load.time)[there].sum()), result.shown_seconds)


def _longest_shared(load: LinkLoad | None) -> str:
    """From when to when a link was shared the longest."""
    if load is None or load.transfers is None:
        return "-"
    shared = np.concatenate([[False], load.transfers >= 2, [False]])
    begins, ends = np.flatnonzero(np.diff(shared.astype(np.int64)) == 1), np.flatnonzero(shared[:-1] & ~shared[1:])
    if not len(begins):
        return "-"
    longest = int(np.argmax(load.time[ends] - load.time[begins]))
    return f"{figures.seconds(load.time[begins[longest]])} to {figures.seconds(load.time[ends[longest]])}"


def _or_dash(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)
