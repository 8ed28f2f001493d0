"""Who came last to collectives, and what waiting for it cost the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.report.exposure import Exposure
from emulator.report.history import History
from emulator.report.pieces import repeats_of
from emulator.result.schema import Lateness, Omitted


def lateness(
    history: History, counts: Sequence[int], exposures: Sequence[Exposure], omitted: Sequence[Omitted] = ()
) -> list[Lateness]:
    """For each rank class the collectives to which it came last while others waited, and their waiting.

    ``counts`` are the ranks of each class: waiting is in rank-seconds, over all ranks that waited.
    """
    found = [Lateness(0, 0.0, 0.0) for _ in history.ranks]
    met: set[tuple[int, str, float, float]] = set()
    for i, (rank, count, exposure) in enumerate(zip(history.ranks, counts, exposures, strict=True)):
        spans = rank.spans
        waited = spans.transfer_start - spans.start
        rows = np.flatnonzero(spans.traits.collectives & spans.communicates & (waited > history.rounding))
        repeats = repeats_of(spans.start, omitted)
        for row in rows.tolist():
            late = rank.arrived_last[row]
            if late == i or not 0 <= late < len(found):
                continue  # ranks of one class come at the same time
            found[late].waiting_seconds += float(waited[row] * repeats[row]) * count
            found[late].exposed_seconds += float(exposure.wait[row]) * count
            collective = (late, rank.table.group[row], rank.transfer[row], rank.end[row])
            if collective not in met:
                met.add(collective)
                found[late].collectives += int(repeats[row])
    return found
