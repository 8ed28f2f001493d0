"""How long a ring waits for its latencies, where slow edges hide those of the others.

In a ring every edge passes ``window`` messages, and message k of an edge needs two things: message k-1 of that edge has
left, and message k-1 of the edge behind has arrived. So the time is that of the longest chain of ``window`` messages,
each of which is of the same edge as the one before (no latency) or of the next edge (the latency of the edge left). A
step on an edge that is not the slowest saves the time by which it is faster: its *slack*. What a chain adds to the time
of the slowest edge is therefore, over the edges of a row of at most ``window``,

    sum(latency - slack x bytes)

and it spends the rest of its steps on the slowest edge (if the row has none of the slowest, this errs long). With edges
alike the row is as long as it may be: the largest sum of ``window`` latencies. With one slow edge and many bytes it is
that edge alone. Over the bytes, the largest of these straight lines is convex and falling; few lines make it up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.network.maxmin import Floats

# Lines that would add less than this part of the whole latency are left out.
_NEGLIGIBLE = 1e-4
_FEW = 1e-9  # of the whole latency
Line = tuple[float, float]  # seconds, and seconds saved per byte


def ring_lines(latency: Floats, slack: Floats, window: int) -> tuple[Floats, Floats]:
    """Lines whose largest is what rings wait beside their bytes: seconds, and seconds saved per byte.

    ``latency`` (s), ``slack`` (s per byte of the largest flow, of one message), both f64[G, r, e]: G groups of r closed
    rings of e edges each. Gives back two f64[G, J], padded with zeros.
    """
    known: dict[frozenset[bytes], Sequence[Line]] = {}  # by the edges of the rings: most groups and rings are alike
    found = []
    for group in np.stack([latency, slack], axis=2):
        distinct = {ring.tobytes(): ring for ring in group}
        key = frozenset(distinct)
        if key not in known:
            rings = np.stack(list(distinct.values()))
            known[key] = _envelope(rings[:, 0], rings[:, 1], window)
        found.append(known[key])
    table = np.zeros((len(found), max(map(len, found)), 2))
    for row, lines in zip(table, found, strict=True):
        row[: len(lines)] = lines
    return table[:, :, 0], table[:, :, 1]


class _Rings:
    """The chains of several rings: :meth:`longest` for a number of bytes."""

    def __init__(self, latency: Floats, slack: Floats, window: int) -> None:
        self.window = window
        least = slack.min(axis=1, keepdims=True)
        self.idle = window * least[:, 0]  # a ring that the slowest edge is not part of is faster in every step
        turns = -(-(window + latency.shape[1]) // latency.shape[1])
        repeated = (np.tile(part, turns) for part in (latency, slack - least))
        # Sums of the first k edges: two of them make the sum of a row.
        self.latency, self.slack = (np.pad(np.cumsum(part, axis=1), ((0, 0), (1, 0))) for part in repeated)

    def longest(self, amount: float) -> Line:
        """The chain that takes the longest at ``amount`` bytes, as a line."""
        total = self.latency - amount * self.slack
        gain = total[:, self.window :] - _least_of_window(total, self.window) - amount * self.idle[:, np.newaxis]
        ring, end = np.unravel_index(int(gain.argmax()), gain.shape)
        end += self.window
        first = end - self.window + int(total[ring, end - self.window : end].argmin())
        seconds = self.latency[ring, end] - self.latency[ring, first]
        return float(seconds), float(self.slack[ring, end] - self.slack[ring, first] + self.idle[ring])


def _least_of_window(values: Floats, window: int) -> Floats:
    """The least of each ``window`` values in a row, f64[r, k] -> f64[r, k - window] (the last row ends at k - 1)."""
    count = values.shape[1] - window
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % window)), constant_values=np.inf)
    blocks = padded.reshape(len(values), -1, window)
    up = np.minimum.accumulate(blocks, axis=2).reshape(padded.shape)
    down = np.minimum.accumulate(blocks[:, :, ::-1], axis=2)[:, :, ::-1].reshape(padded.shape)
    return np.minimum(down[:, :count], up[:, window - 1 : window - 1 + count])


def _envelope(latency: Floats, slack: Floats, window: int) -> Sequence[Line]:
    """The lines that are the largest somewhere from 0 bytes on, steepest first."""
    rings = _Rings(latency, slack, window)
    whole = rings.longest(0.0)[0]
    if whole <= 0 or not slack.any():
        return [(whole, 0.0)]
    # So few bytes that slack only decides between chains of equal latency.
    steepest = rings.longest(_FEW * whole / (window * slack.max()))
    # With many bytes no edge that has slack is worth its latency.
    flattest = (_Rings(latency, np.where(slack > 0, 2 * whole, 0.0), window).longest(1.0)[0], 0.0)
    lines, open_pairs = [steepest, flattest], [(steepest, flattest)]
    while open_pairs:
        a, b = open_pairs.pop()
        if a[1] <= b[1]:
            continue
        meet = (a[0] - b[0]) / (a[1] - b[1])
        middle = rings.longest(meet)
        if middle[0] - middle[1] * meet > a[0] - a[1] * meet + _NEGLIGIBLE * whole:
            lines.append(middle)
            open_pairs += [(a, middle), (middle, b)]
    return sorted(set(lines), key=lambda line: -line[1])
