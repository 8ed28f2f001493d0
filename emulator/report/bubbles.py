"""The bubble of a pipeline rank, and its causes: who was waited for, and what was that one doing?

At every instant of a bubble the way back from the rank's next pipeline op (after the last one: from the end of the
pipeline) says what held it up. A transfer between stages, or the host, is a cause by itself. Another stage's work, its
collectives included, is

- *imbalance* if that stage worked through a backlog: it had begun this microbatch because it was done with another;
- *fill* if it had begun it because the data had just arrived (the microbatch travels, which takes time in the most even
  pipeline) and the waiting rank has not computed anything in that direction, forward or backward, yet;
- *drain* if so and the waiting rank is through with its work;
- between two ops of the waiting rank, whatever kept that stage idle before, for as long as it was idle; the rest is
  *drain* where the waiting rank has no forward work left, else imbalance.

Imbalance is never more than some stage has worked longer on its microbatches than the waiting rank does
(:mod:`.excess`): even stages have backlogs too where an order of work lets them. What is beyond that is *fill* until
the waiting rank has begun its backward work, then *drain*.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from emulator.report.excess import Excess
from emulator.report.history import History, Place, Stretch
from emulator.report.pieces import Pieces
from emulator.result.schema import Bubble

_DEPTH = 100  # stages that a delay is followed through, one after the other
_NOBODY = -1
CAUSES = ("fill", "drain", "imbalance", "transfer", "host")


def bubble_seconds(pieces: Pieces, phase: tuple[float, float]) -> float:
    """Seconds of the pipeline phase in which one rank idled or waited, exposed, for a peer to send or receive."""
    inside = np.clip(pieces.edges, *phase)
    return fsum((np.diff(inside) * pieces.repeats)[_lost(pieces)].tolist())


def bubble_causes(history: History, pieces: Sequence[Pieces], phase: tuple[float, float]) -> list[Bubble | None]:
    """The bubble of every rank class by cause (None: it neither sends nor receives), from the pieces of each.

    The causes of a rank add up to its ``bubble_seconds``.
    """
    waits = _Waits(history)
    return [
        _causes(waits, i, own, phase) if history.ranks[i].spans.traits.uses_peers else None
        for i, own in enumerate(pieces)
    ]


def _causes(waits: _Waits, rank_class: int, pieces: Pieces, phase: tuple[float, float]) -> Bubble:
    seconds: dict[str, list[float]] = {cause: [] for cause in CAUSES}
    inside = np.clip(pieces.edges, *phase).tolist()
    spent = 0.0  # imbalance so far
    for piece in np.flatnonzero(_lost(pieces)).tolist():
        low, high = inside[piece], inside[piece + 1]
        if high > low:
            following = waits.schedules[rank_class].next_after(high, waits.history.rounding)
            found = waits.explain(rank_class, low, high, following, spent)
            spent += found.get("imbalance", 0.0)
            for cause, share in found.items():
                seconds[cause].append(share * float(pieces.repeats[piece]))
    return Bubble(**{f"{cause}_seconds": fsum(values) for cause, values in seconds.items()})


def _lost(pieces: Pieces) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    idle = pieces.on("idle_before") | pieces.on("idle_after") | pieces.on("idle_dependency")
    return np.asarray(idle | (pieces.on("exposed_wait") & pieces.waits_for_peer))


class _Waits:
    """Explains what a rank waited for, from the schedules of all ranks and the ways back."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.schedules = [Schedule.of(history, i) for i in range(len(history.ranks))]
        self._finish = _last_pipeline_op(history)
        self._excess = Excess(history)
        self._depth = 0
        self._ways: dict[tuple[int, int | None], _Way] = {}
        self._late: dict[tuple[int, int], dict[str, float]] = {}

    def explain(
        self, rank_class: int, low: float, high: float, following: int | None, spent: float = 0.0
    ) -> dict[str, float]:
        """Why a rank waited from ``low`` to ``high``: seconds by cause. ``following`` is its next op, as a position in
        its schedule (None: it had none); ``spent``: seconds of imbalance that it waited before.
        """
        own = self.schedules[rank_class]
        until = np.inf if following is None else own.starts[following]
        left = max(0.0, self._excess.until(rank_class, until) - spent)
        found: dict[str, float] = {}
        for start, end, doing, stage in reversed(self._way_from(rank_class, following).between(low, high)):
            even = own.even_cause(following, start)
            shares = {doing: end - start}
            if doing == "travel":
                if following is None or own.is_first(following):
                    shares = {even: end - start}
                else:
                    rest = "drain" if own.last_forward <= start else "imbalance"
                    shares = self._knock_on(stage, start, end - start, rest)
            imbalance = shares.get("imbalance", 0.0)
            if stage != _NOBODY and imbalance:
                shares["imbalance"] = min(imbalance, left)
                shares[even] = shares.get(even, 0.0) + imbalance - shares["imbalance"]
                left -= shares["imbalance"]
            for cause, share in shares.items():
                found[cause] = found.get(cause, 0.0) + share
        return found

    def _knock_on(self, stage: int, moment: float, seconds: float, rest: str) -> dict[str, float]:
        """Why a stage had not begun the work that it does at a moment some seconds earlier: as much as it had been idle
        before is due to what that was due to, the rest to ``rest``.
        """
        late = self._lateness(stage, self.schedules[stage].unit_at(moment, self.history.rounding))
        idle = sum(late.values())
        taken = min(seconds, idle)
        found = {rest: seconds - taken}
        for cause, share in late.items():
            due = rest if cause in ("fill", "drain") else cause
            found[due] = found.get(due, 0.0) + taken * share / idle
        return found

    def _lateness(self, stage: int, first: int) -> dict[str, float]:
        """Causes of the idle time of a stage before an op of its schedule."""
        key = (stage, first)
        if key not in self._late:
            self._late[key] = {}
            schedule = self.schedules[stage]
            late = first >= 0 and schedule.starts[first] - schedule.free[first] > self.history.rounding
            if late and self._depth < _DEPTH:
                self._depth += 1
                self._late[key] = self.explain(stage, schedule.free[first], schedule.starts[first], first)
                self._depth -= 1
        return self._late[key]

    def _way_from(self, rank_class: int, following: int | None) -> _Way:
        key = (rank_class, following)
        if key not in self._ways:
            target = self._finish if following is None else (rank_class, self.schedules[rank_class].rows[following])
            self._ways[key] = _Way(self.history, self.schedules, target, from_end=following is None)
        return self._ways[key]


@dataclass(frozen=True)
class Schedule:
    """The pipeline compute ops of one rank in order of time, and where each direction begins and ends."""

    rows: list[int]
    starts: list[float]
    free: list[float]  # end of all that came before each op
    begins: list[int]  # the first op of the work on one microbatch that each op belongs to
    units: list[tuple[str, int]]  # direction and microbatch of every row of the op table
    messages: list[bool]  # whether a row of the op table goes to or comes from another stage
    first: dict[str, float]  # start of the first op of each direction
    last_forward: float  # end of the last forward op; -inf if there is none

    @staticmethod
    def of(history: History, rank_class: int) -> Schedule:
        """The schedule of one rank class."""
        spans = history.ranks[rank_class].spans
        traits = spans.traits
        rows = np.flatnonzero(traits.pipelined & spans.computes)
        rows = rows[np.argsort(spans.start[rows], kind="stable")]
        ordered, starts = rows.tolist(), spans.start[rows].tolist()
        codes = traits.unit_codes[rows]
        begins = np.arange(len(rows))
        begins[1:][codes[1:] == codes[:-1]] = 0
        first: dict[str, float] = {}
        for row, start in zip(ordered, starts, strict=True):
            first.setdefault(traits.units[row][0], start)
        forward = [row for row in ordered if traits.units[row][0] == "forward"]
        return Schedule(
            rows=ordered,
            starts=starts,
            free=np.concatenate([[0.0], np.maximum.accumulate(spans.end[rows])])[: len(rows)].tolist(),
            begins=np.maximum.accumulate(begins).tolist(),
            units=traits.units,
            messages=traits.messages_listed,
            first=first,
            last_forward=float(spans.end[forward].max()) if forward else -np.inf,
        )

    def next_after(self, moment: float, rounding: float) -> int | None:
        """Position of the first op that starts at a moment or later; None after the last."""
        position = bisect_left(self.starts, moment - rounding)
        return position if position < len(self.starts) else None

    def is_first(self, position: int) -> bool:
        """Whether an op is the first of its direction."""
        return self.starts[position] <= self.first[self.units[self.rows[position]][0]]

    def even_cause(self, following: int | None, moment: float) -> str:
        """What a wait at a moment is due to where all stages work equally long."""
        if following is None:
            return "drain"
        if self.is_first(following):
            return "fill"
        backward = min((start for way, start in self.first.items() if way != "forward"), default=np.inf)
        return "drain" if backward <= moment else "fill"

    def unit_at(self, moment: float, rounding: float) -> int:
        """Where the work on a microbatch begins that is done at a moment; -1 before the first op."""
        position = bisect_right(self.starts, moment + rounding) - 1
        return self.begins[position] if position >= 0 else -1


def _last_pipeline_op(history: History) -> Place:
    """The pipeline op that ends last."""
    ends = []
    for i, rank in enumerate(history.ranks):
        rows = np.flatnonzero(rank.spans.traits.pipelined | rank.spans.traits.messages)
        rows = rows[~np.isnan(rank.spans.end[rows])]
        if len(rows):
            last = int(rows[np.argmax(rank.spans.end[rows])])
            ends.append((rank.end[last], -i, last))
    _, negated, row = max(ends)
    return -negated, row


class _Way:
    """A way back, read as far as asked for, each stretch with what it means for somebody who waits at its end:
    imbalance, travel, transfer or host.
    """

    def __init__(self, history: History, schedules: list[Schedule], target: Place, *, from_end: bool) -> None:
        self._history = history
        self._schedules = schedules
        self._walk = history.walk_back(target, from_end=from_end, whole_work=True)
        self._starts: list[float] = []  # negated, so that they rise
        self._stretches: list[Stretch] = []
        self._meanings: list[str] = []
        self._unit: list[int] = []  # stretches of the stage's work on one microbatch, whose meaning is not known yet
        self._first_compute: Place | None = None  # of that work
        self._ended = False

    def between(self, low: float, high: float) -> list[tuple[float, float, str, int]]:
        """What held the waiter up from ``low`` to ``high``, latest first, and who: start, end, meaning, rank class.

        Work of one rank class without a break is one entry.
        """
        self._read(low)
        found: list[tuple[float, float, str, int]] = []
        at = bisect_right(self._starts, -high)  # the latest that begins before
        while at < len(self._stretches) and self._stretches[at].end > low:
            stretch, meaning = self._stretches[at], self._meanings[at]
            start, end = max(low, stretch.start), min(high, stretch.end)
            if found and found[-1][0] == end and found[-1][2:] == (meaning, stretch.rank_class):
                found[-1] = (start, *found[-1][1:])
            elif end > start:
                found.append((start, end, meaning, stretch.rank_class))
            at += 1
        if not found and high > low:  # the way does not reach this far up (a waiter held by rounding)
            found.append((low, high, "imbalance", _NOBODY))
        return found

    def _read(self, until: float) -> None:
        """Read on until every stretch that ends after ``until`` has its meaning."""
        while not self._ended and not self._resolved_to(until):
            stretch = next(self._walk, None)
            if stretch is None:
                self._settle("travel")  # it began with the step
                self._ended = True
                return
            self._take(stretch)

    def _resolved_to(self, until: float) -> bool:
        if self._unit:
            return self._stretches[self._unit[0]].end <= until
        return bool(self._stretches) and self._stretches[-1].start <= until

    def _take(self, stretch: Stretch) -> None:
        if stretch.what == "transfer" and self._schedules[stretch.rank_class].messages[stretch.row]:
            self._settle("travel")
            meaning = "transfer"
        elif stretch.what in ("compute", "transfer"):  # collectives inside a stage are part of its work
            if stretch.what == "compute":
                if self._unit and self._backlog(stretch):
                    self._settle("imbalance")
                first = self._history.ranks[stretch.rank_class].work_begins[stretch.row]
                self._first_compute = (stretch.rank_class, first)
            if stretch.end > stretch.start:
                self._unit.append(len(self._stretches))
            meaning = ""
        else:
            meaning = "host" if stretch.what == "host" else "imbalance"
        if stretch.end > stretch.start:
            self._stretches.append(stretch)
            self._starts.append(-stretch.start)
            self._meanings.append(meaning)

    def _backlog(self, earlier: Stretch) -> bool:
        """Whether the last compute op read followed another on its stage only because the stage was busy with that.

        Not so within a microbatch (its backward follows its forward on the last stage), nor where a direction begins.
        """
        if self._first_compute is None:
            return False
        rank_class, row = self._first_compute
        schedule = self._schedules[rank_class]
        direction, microbatch = schedule.units[row]
        before, another = self._schedules[earlier.rank_class].units[earlier.row]
        if microbatch == another and (direction == before or microbatch >= 0):
            return False
        return (
            self._history.ranks[rank_class].start[row] > schedule.first.get(direction, -np.inf) + self._history.rounding
        )

    def _settle(self, meaning: str) -> None:
        for index in self._unit:
            self._meanings[index] = meaning
        self._unit, self._first_compute = [], None
