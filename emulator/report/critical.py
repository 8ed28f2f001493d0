"""The critical path of the step, what it is made of, and how much everything else could slip."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import fsum

import numpy as np

from emulator.report.history import History, RankHistory, Stretch
from emulator.report.kinds import kind_of_group
from emulator.report.pieces import repeats_of
from emulator.result.build import labels
from emulator.result.schema import Omitted, Result
from emulator.result.tables import CriticalPath, Floats

Row = tuple[int, int]


def critical_path(history: History, omitted: Sequence[Omitted] = ()) -> CriticalPath:
    """The way back from the op that ends the step to its start; the lengths, times repeats, add up to the step.

    Periods ``omitted`` from the timeline count where the last of their kind is shown, so stretches end at its borders.
    """
    ends = [
        (float(np.nanmax(rank.spans.end)), -i, int(np.nanargmax(rank.spans.end)))
        for i, rank in enumerate(history.ranks)
        if (~np.isnan(rank.spans.end)).any()
    ]
    way: list[Stretch] = []
    if ends:
        _, negated, row = max(ends)
        borders = sorted(t for jump in omitted for t in (jump.at_seconds - jump.period_seconds, jump.at_seconds))
        whole = history.walk_back((-negated, row), from_end=True)
        way = [part for stretch in whole for part in _split(stretch, borders) if part.end > part.start]
    return CriticalPath(
        rank_class=np.array([s.rank_class for s in way], dtype=np.int64),
        op=np.array([s.row for s in way], dtype=np.int64),
        what=labels(s.what for s in way),
        start=np.array([s.start for s in way], dtype=np.float64),
        end=np.array([s.end for s in way], dtype=np.float64),
        repeats=repeats_of(np.array([s.start for s in way], dtype=np.float64), omitted),
    )


def _split(stretch: Stretch, borders: Sequence[float]) -> Iterator[Stretch]:
    """A stretch cut at the borders inside it, latest first."""
    end = stretch.end
    for border in reversed([t for t in borders if stretch.start < t < stretch.end]):
        yield stretch._replace(start=border, end=end)
        end = border
    yield stretch._replace(end=end)


def composition(result: Result, key: Callable[[Result, int, int, str], str]) -> list[tuple[str, float]]:
    """Seconds of the critical path by a key of (result, rank class, row, what), the longest first."""
    path = result.path
    if path is None:
        return []
    lengths: dict[str, list[float]] = defaultdict(list)
    seconds = ((path.end - path.start) * path.repeats).tolist()
    for i, (rank_class, row) in enumerate(zip(path.rank_class.tolist(), path.op.tolist(), strict=True)):
        lengths[key(result, rank_class, row, path.what[i])].append(seconds[i])
    return sorted(((name, fsum(values)) for name, values in lengths.items()), key=lambda pair: -pair[1])


def slack(history: History) -> list[Floats]:
    """For every rank class the seconds by which each row could end later without a longer step.

    Everything else stays as it was: durations, order on the streams, who shares which link. Rows that did not run
    have nan. A communication op has the least slack of all its participants.
    """
    latest = [np.full(len(rank.end), history.shown_seconds).tolist() for rank in history.ranks]
    order = _latest_first(history)
    followers = [_followers(rank) for rank in history.ranks]
    partners = {row: rows for rows in messages(history) for row in rows}
    for _ in range(8):  # one pass but where ops of no length follow each other between ranks in one instant
        if not _pass(history, order, followers, partners, latest):
            break
    return [
        np.where(np.isnan(rank.spans.end), np.nan, np.maximum(np.array(own) - rank.spans.end, 0.0))
        for rank, own in zip(history.ranks, latest, strict=True)
    ]


def _pass(
    history: History,
    order: list[Row],
    followers: list[list[list[int]]],
    partners: dict[Row, list[Row]],
    latest: list[list[float]],
) -> bool:
    """Tighten the latest ends once, latest ops first; whether anything changed."""
    changed = False
    sync_limit = [history.shown_seconds] * len(history.ranks)  # latest start of what was issued after the row
    for rank_class, row in order:
        rank = history.ranks[rank_class]
        limit = min(
            [latest[rank_class][row], *(_latest_start(rank, latest[rank_class], f) for f in followers[rank_class][row])]
        )
        if rank.spans.synchronises[row]:
            limit = min(limit, sync_limit[rank_class])
        for other_class, other in partners.get((rank_class, row), ()):
            limit = min(limit, latest[other_class][other])
        if limit < latest[rank_class][row]:
            latest[rank_class][row] = limit
            changed = True
        sync_limit[rank_class] = min(sync_limit[rank_class], _latest_start(rank, latest[rank_class], row))
    return changed


def _latest_start(rank: RankHistory, latest: list[float], row: int) -> float:
    """When a row has to have everything it waits for, to end at its latest end."""
    if rank.passes[row]:
        return latest[row]
    began = rank.transfer[row] if rank.communicates[row] else rank.start[row]
    return latest[row] - (rank.end[row] - began)


def _latest_first(history: History) -> list[Row]:
    keys = []
    for i, rank in enumerate(history.ranks):
        ran = np.flatnonzero(~np.isnan(rank.spans.end))
        keys.append(np.stack([rank.spans.end[ran], rank.spans.start[ran], ran, np.full(len(ran), i)]))
    end, start, row, rank_class = np.concatenate(keys, axis=1) if keys else np.zeros((4, 0))
    order = np.lexsort((-row, -start, -end))
    return list(zip(rank_class[order].astype(int).tolist(), row[order].astype(int).tolist(), strict=True))


def _followers(rank: RankHistory) -> list[list[int]]:
    """For each row those that had to wait for its end: who lists it, and the next on its stream that it held."""
    found: list[list[int]] = [[] for _ in rank.end]
    pointers, deps = rank.table.deps_ptr.tolist(), rank.table.deps.tolist()
    for row in range(len(rank.end)):
        for dep in deps[pointers[row] : pointers[row + 1]]:
            found[dep].append(row)
        if rank.holder[row] >= 0:
            found[rank.holder[row]].append(row)
    for stream in rank.spans.streams:
        rows = stream.tolist()
        for before, after in pairwise(rows):
            if rank.end[before] <= rank.start[after]:
                found[before].append(after)
    return found


def messages(history: History) -> list[list[Row]]:
    """The participants of every communication op that has several in the result: same group, same transfer.

    Rank classes that did the same at the same time in different groups count as one message: its slack is then the
    least of theirs.
    """
    members: dict[tuple[str, float, float], list[Row]] = defaultdict(list)
    for i, rank in enumerate(history.ranks):
        for row in np.flatnonzero(rank.spans.communicates).tolist():
            members[rank.table.group[row], rank.transfer[row], rank.end[row]].append((i, row))
    return [rows for rows in members.values() if len(rows) > 1]


def kind_key(result: Result, rank_class: int, row: int, what: str) -> str:
    """Stretches by what they are: compute by phase, transfer by kind of communication, host, other."""
    table = result.programs[result.ranks[rank_class].program]
    if what == "compute":
        return f"compute, {table.phase[row].replace('_', ' ') or 'no phase'}"
    if what == "transfer":
        kind = kind_of_group(table.group[row], table.kind[row])
        return f"{kind} {table.collective[row] or 'send/recv'}"
    return what
