"""What resident communication costs compute: the extra time of kernels on a chip that it shares."""

from __future__ import annotations

import numpy as np

from emulator.report.pieces import Pieces
from emulator.result.tables import ComputeRate, Floats


def extra_time(pieces: Pieces, rate: ComputeRate) -> Floats:
    """Seconds of each piece that are extra time: those it stands for, less the work done in them; 0 where nothing
    computes.
    """
    return np.where(pieces.on("compute"), np.diff(rate.lost(pieces.edges)) * pieces.repeats, 0.0)
