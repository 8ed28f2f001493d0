"""The step of a rank cut into pieces on which nothing changes, each given to the first line that holds.

The definitions are those of ``docs/report.md``; everything that splits a line further (by kind, phase or cause) works
on these pieces, so that its parts add up to the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import fsum

import numpy as np
from numpy.typing import NDArray

from emulator.report.holding import Spans, exposed_waits, host_holds
from emulator.report.traits import Mask, Traits, traits_of
from emulator.result.schema import Omitted, Result
from emulator.result.tables import Floats, Ints, OpTable

LINES = (
    "compute",
    "exposed_transfer",
    "exposed_wait",
    "host",
    "idle_before",
    "idle_after",
    "idle_dependency",
)


@dataclass(frozen=True)
class Pieces:
    """The step of one rank cut at every start and end: piece i is [edges[i], edges[i+1]) and belongs to
    ``LINES[line[i]]``. It counts ``repeats[i]`` times: once, but where a steady state is shown once for many periods.
    The masks say what else holds on a piece; ``waits_for_peer`` is an exposed wait (whatever line it went to) for a
    send or recv.
    """

    edges: Floats
    repeats: Ints
    line: NDArray[np.int8]
    computes: Mask
    transfers: Mask
    communicates: Mask
    waits_for_peer: Mask

    @cached_property
    def lengths(self) -> Floats:
        """Seconds that each piece stands for."""
        return np.asarray(np.diff(self.edges) * self.repeats)

    def seconds(self, mask: Mask) -> float:
        """Seconds that the pieces under a mask stand for, together."""
        return fsum(self.lengths[mask].tolist())

    def on(self, name: str) -> Mask:
        """The pieces of one line."""
        return np.asarray(self.line == LINES.index(name))


def cut(table: OpTable, spans: Spans, step_seconds: float, omitted: Sequence[Omitted] = ()) -> Pieces:
    """Cut the step of one rank class into pieces and give each to its line.

    ``step_seconds`` is the length of the time shown; periods ``omitted`` from it are counted where they are shown.
    """
    busy = spans.computes | spans.communicates
    waits = exposed_waits(table, spans)
    layers = [
        _clip(spans.start[spans.computes], spans.end[spans.computes], step_seconds),
        _clip(spans.transfer_start[spans.communicates], spans.end[spans.communicates], step_seconds),
        _clip(spans.start[spans.communicates], spans.end[spans.communicates], step_seconds),
        _clip(waits.start, waits.end, step_seconds),
        _clip(waits.start[waits.for_peer], waits.end[waits.for_peer], step_seconds),
        _clip(*host_holds(table, spans), step_seconds),
    ]
    first, last = (spans.start[busy].min(), spans.end[busy].max()) if busy.any() else (step_seconds, step_seconds)
    periods = [moment for jump in omitted for moment in (jump.at_seconds - jump.period_seconds, jump.at_seconds)]
    bounds = np.clip([0.0, first, last, step_seconds, *periods], 0.0, step_seconds)
    sides = [side for layer in layers for side in layer]
    edges, places = np.unique(np.concatenate([bounds, *sides]), return_inverse=True)
    ends = list(accumulate((len(side) for side in sides), initial=len(bounds)))
    at = [places[low:high] for low, high in pairwise(ends)]
    computes, transfers, communicates, waiting, for_peer, held_by_host = (
        _between(len(edges), *at[i : i + 2]) for i in range(0, len(at), 2)
    )
    middle = edges[:-1]
    line = np.full(len(middle), 6, dtype=np.int8)
    holding = [computes, transfers, waiting, held_by_host, middle < first, middle >= last]
    for i, mask in reversed(list(enumerate(holding))):  # the first that holds is written last
        line[mask] = i
    return Pieces(edges, repeats_of(middle, omitted), line, computes, transfers, communicates, for_peer)


def repeats_of(start: Floats, omitted: Sequence[Omitted]) -> Ints:
    """How often what begins at ``start`` (seconds of the time shown) happened: often, if in a steady state's period."""
    repeats = np.ones(len(start), dtype=np.int64)
    for jump in omitted:
        repeats[(start >= jump.at_seconds - jump.period_seconds) & (start < jump.at_seconds)] += jump.count
    return repeats


def pipeline_phase(result: Result, traits: Sequence[Traits] = ()) -> tuple[float, float] | None:
    """First start and last end (seconds) over all ranks of pipeline ops; None if nobody sends or receives.

    Pipeline ops are sends, receives, and compute of a forward or backward phase or of a numbered microbatch, on ranks
    that send or receive. ``traits`` of each program, where they have been worked out already.
    """
    traits = traits or [traits_of(table) for table in result.programs]
    counted = [own.messages | own.pipelined if own.uses_peers else None for own in traits]
    starts, ends = [], []
    for timeline in result.timeline:
        mask = counted[result.ranks[timeline.rank_class].program]
        rows = None if mask is None else mask[timeline.op]
        if rows is not None and rows.any():
            starts.append(float(timeline.start[rows].min()))
            ends.append(float(timeline.end[rows].max()))
    return (min(starts), max(ends)) if starts else None


def covered(edges: Floats, start: Floats, end: Floats) -> Mask:
    """For each piece between edges: does any of the spans cover it? Ends of spans are edges."""
    return _between(len(edges), np.searchsorted(edges, start), np.searchsorted(edges, end))


def _between(edges: int, first: Ints, last: Ints) -> Mask:
    """For each piece between so many edges: is it between the ``first`` and ``last`` edge of any span?"""
    if not len(first):  # most often: a rank that computes and no more has five such layers of six
        return np.zeros(edges - 1, dtype=bool)
    change = np.bincount(first, minlength=edges) - np.bincount(last, minlength=edges)
    return np.asarray(np.cumsum(change)[:-1] > 0)


def _clip(start: Floats, end: Floats, step_seconds: float) -> tuple[Floats, Floats]:
    low, high = np.maximum(start, 0.0), np.maximum(end, 0.0)
    return np.minimum(low, step_seconds), np.minimum(high, step_seconds)
