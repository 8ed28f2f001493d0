"""Does an order let every op see what it would see in issue order? Told from what ops read and write, without tensors.

Two ops conflict if they touch one storage and one of them writes it. The one issued first has to have ended (published)
before the other starts (reads): otherwise their intervals overlap, or they have changed places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.trace.schema import Op
from emulator.verify.order import Event, Unit, positions
from emulator.verify.recorded import describe


def conflicts(
    ops: Mapping[int, Op], units: Sequence[Unit], events: Sequence[Event], rank: int
) -> tuple[int, list[str]]:
    """Pairs of conflicting ops that were looked at, and a line for each that is out of order.

    ``ops`` are the recorded ops of the rank by id, in issue order. Pairs inside one unit run in issue order.
    """
    unit_of = {op: u for u, unit in enumerate(units) for op in unit.ops}
    starts, ends = positions(events, len(units))
    pairs, found = 0, []
    for first, second, storage in conflicting_pairs(ops):
        a, b = unit_of.get(first), unit_of.get(second)
        if a is None or b is None or a == b:
            continue
        pairs += 1
        if not 0 <= ends[a] < starts[b]:
            found.append(f"rank {rank}: {_sentence(ops[first], ops[second], units[a], units[b], storage)}")
    return pairs, found


def conflicting_pairs(ops: Mapping[int, Op]) -> Iterator[tuple[int, int, int]]:
    """(earlier op, later op, storage) that have to keep their order; pairs that others imply are left out."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for op in ops.values():
        read = {storage for storage, _ in op.reads if isinstance(storage, int)}
        written = {storage for storage, _ in op.writes if isinstance(storage, int)}
        for storage in sorted(read | written):
            if storage in writer and not (storage in written and readers.get(storage)):
                yield writer[storage], op.id, storage
        for storage in sorted(written):
            for reader in readers.get(storage, ()):
                if reader != op.id:
                    yield reader, op.id, storage
            writer[storage], readers[storage] = op.id, []
        for storage in read - written:
            readers.setdefault(storage, []).append(op.id)


def _sentence(first: Op, second: Op, a: Unit, b: Unit, storage: int) -> str:
    writes_first = any(ref == storage for ref, _ in first.writes)
    verb = "reads" if all(ref != storage for ref, _ in second.writes) else "writes"
    other = "writes" if writes_first else "reads"
    if b.start < a.end and a.start < b.end:
        how = f"they overlap, {max(a.start, b.start):.9g} s to {min(a.end, b.end):.9g} s"
    else:
        how = f"it runs {b.start:.9g} s to {b.end:.9g} s, the other {a.start:.9g} s to {a.end:.9g} s"
    return f"{describe(second)} {verb} storage {storage} that {describe(first)} {other}: {how}"


def meetings(
    starts: Sequence[NDArray[np.float64]],
    ends: Sequence[NDArray[np.float64]],
    names: Sequence[str],
    members: Sequence[Sequence[int]],
) -> list[str]:
    """Collectives and messages that end before their last member has come, a line each.

    Meeting m has member ranks ``members[m]``, who came at ``starts[m]`` and left at ``ends[m]`` (seconds).
    """
    found = []
    for name, came, left, who in zip(names, starts, ends, members, strict=True):
        late, early = int(came.argmax()), int(left.argmin())
        if came[late] > left[early]:
            found.append(
                f"{name} ends on rank {who[early]} at {left[early]:.9g} s, before rank {who[late]} comes at "
                f"{came[late]:.9g} s"
            )
    return found
