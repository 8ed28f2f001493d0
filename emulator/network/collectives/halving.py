"""Algorithms of log2(n) exchanges: recursive halving and doubling, recursive doubling, Bruck.

With n a power of two (Thakur, Rabenseifner, Gropp 2005): reduce-scatter by halving and all-gather by doubling take
``log2(n) a + (n-1)/n S/B`` each, the all-reduce of both twice that, recursive doubling of the whole buffer
``log2(n) (a + S/B)``. Partners lie 1, 2, 4... apart, the largest messages between the nearest. Otherwise the first
2(n - 2^m) members work in pairs: the second of each pair stands for both, which costs one exchange before and one
after (``a + S/B`` each for an all-reduce). No step is merged with another: who runs ahead must not help others.

Bruck et al. 1997: all-to-all in ``ceil(log2 n)`` exchanges of about half of S, all-gather in as many of growing size,
for any n.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emulator.network.collectives.phase import Phase, phases_of
from emulator.network.collectives.schedule import Case, Step, pair_chunks
from emulator.network.maxmin import Floats, Ints


def _core(n: int) -> tuple[Ints, Ints, Ints, int]:
    """Members that exchange, their silent partners, those who speak for them, and the number of exchanges."""
    bits = n.bit_length() - 1
    extra = n - (1 << bits)
    silent = 2 * np.arange(extra)
    core = np.concatenate([silent + 1, np.arange(2 * extra, n)])
    return core, silent, silent + 1, bits


def _transfers(src: Ints, dst: Ints, chunks: list[Ints], reduce: bool) -> Step:
    width = [len(chunk) for chunk in chunks]
    return Step(np.repeat(src, width), np.repeat(dst, width), np.concatenate(chunks), reduce)


def _spoken_for(core: Ints, silent: Ints) -> list[Ints]:
    """Chunks of each core member: its own and its partner's."""
    return [np.array([member - 1, member] if k < len(silent) else [member]) for k, member in enumerate(core.tolist())]


def reduce_scatter(case: Case) -> Iterator[Step]:
    """Halving: in step b partners 2^b apart send each other what the other side keeps."""
    core, silent, speaker, bits = _core(case.n)
    everything = np.arange(case.n)
    if len(silent):
        yield _transfers(silent, speaker, [everything] * len(silent), True)
    own = _spoken_for(core, silent)
    place = np.arange(len(core))
    for bit in range(bits):
        partner = place ^ (1 << bit)
        low = (1 << (bit + 1)) - 1  # what goes: chunks of places that agree with the partner in all bits so far
        sent = [np.concatenate([own[q] for q in place[(place & low) == (p & low)].tolist()]) for p in partner.tolist()]
        yield _transfers(core, core[partner], sent, True)
    if len(silent):
        yield Step(speaker, silent, silent)


def all_gather(case: Case) -> Iterator[Step]:
    """Doubling: the halving backwards."""
    core, silent, speaker, bits = _core(case.n)
    if len(silent):
        yield Step(silent, speaker, silent)
    own = _spoken_for(core, silent)
    place = np.arange(len(core))
    for bit in reversed(range(bits)):
        low = (1 << (bit + 1)) - 1
        held = [np.concatenate([own[q] for q in place[(place & low) == (p & low)].tolist()]) for p in place.tolist()]
        yield _transfers(core, core[place ^ (1 << bit)], held, False)
    if len(silent):
        everything = np.arange(case.n)
        yield _transfers(speaker, silent, [everything[everything != s] for s in silent.tolist()], False)


def core_chunks(case: Case) -> Floats:
    """One chunk per member of the core."""
    count = 1 << (case.n.bit_length() - 1)
    return np.full(count, 1.0 / count)


def all_reduce(case: Case) -> Iterator[Step]:
    """Halving, then doubling; partners come in before and hear the result after."""
    core, silent, speaker, _ = _core(case.n)
    inner, everything = Case(len(core)), np.arange(len(core))
    if len(silent):
        yield _transfers(silent, speaker, [everything] * len(silent), True)
    for step in (*reduce_scatter(inner), *all_gather(inner)):
        yield Step(core[step.src], core[step.dst], step.chunk, step.reduce)
    if len(silent):
        yield _transfers(speaker, silent, [everything] * len(silent), False)


def _exchanges(core: Ints, kept: Floats) -> list[Phase]:
    """Phases of a halving where member k of the core ends with the part ``kept[k]`` of S."""
    place, phases = np.arange(len(core)), []
    for bit in range(len(core).bit_length() - 1):
        partner, low = place ^ (1 << bit), (1 << (bit + 1)) - 1
        phases.append(Phase(core, core[partner], np.bincount(place & low, kept)[partner & low]))
    return phases


def _turned(phases: list[Phase]) -> list[Phase]:
    return [Phase(phase.dst, phase.src, phase.fraction) for phase in reversed(phases)]


def _scatter_phases(case: Case) -> list[Phase]:
    core, silent, speaker, _ = _core(case.n)
    kept = np.full(len(core), 1.0 / case.n)
    kept[: len(silent)] *= 2
    before = [Phase(silent, speaker, np.ones(len(silent)))] if len(silent) else []
    after = [Phase(speaker, silent, np.full(len(silent), 1 / case.n))] if len(silent) else []
    return before + _exchanges(core, kept) + after


def reduce_scatter_phases(case: Case) -> tuple[Phase, ...]:
    """A phase per exchange."""
    return tuple(_scatter_phases(case))


def all_gather_phases(case: Case) -> tuple[Phase, ...]:
    """A phase per exchange; the last one leaves out what the silent member had itself."""
    *before, last = _turned(_scatter_phases(case))
    if case.n & (case.n - 1):
        last = Phase(last.src, last.dst, last.fraction * ((case.n - 1) / case.n))
    return (*before, last)


def all_reduce_phases(case: Case) -> tuple[Phase, ...]:
    """A phase per exchange."""
    core, silent, speaker, _ = _core(case.n)
    exchanges = _exchanges(core, core_chunks(case))
    before = [Phase(silent, speaker, np.ones(len(silent)))] if len(silent) else []
    return tuple(before + exchanges + _turned(exchanges) + _turned(before))


def recursive_doubling(case: Case) -> Iterator[Step]:
    """All-reduce of the whole buffer in every exchange: few messages, many bytes."""
    core, silent, speaker, bits = _core(case.n)
    place, zero = np.arange(len(core)), np.zeros(len(core), dtype=np.int64)
    if len(silent):
        yield Step(silent, speaker, zero[: len(silent)], reduce=True)
    for bit in range(bits):
        yield Step(core, core[place ^ (1 << bit)], zero, reduce=True)
    if len(silent):
        yield Step(speaker, silent, zero[: len(silent)])


def bruck_all_gather(case: Case) -> Iterator[Step]:
    """In step k everyone sends all it has to the member 2^k places back."""
    member, have = np.arange(case.n), 1
    while have < case.n:
        count = min(have, case.n - have)
        chunk = (member[:, np.newaxis] + np.arange(count)) % case.n
        yield Step(np.repeat(member, count), np.repeat((member - have) % case.n, count), chunk.ravel())
        have += count


def bruck_all_to_all(case: Case) -> Iterator[Step]:
    """In step k what has to go a distance with bit k set goes 2^k places on."""
    sender = np.arange(case.n)
    for k in range((case.n - 1).bit_length()):
        distance = np.arange(case.n)
        distance = distance[(distance >> k) & 1 == 1]
        start, far = (grid.ravel() for grid in np.meshgrid(sender, distance, indexing="ij"))
        here = (start + far % (1 << k)) % case.n
        yield Step(here, (here + (1 << k)) % case.n, start * case.n + (start + far) % case.n)


def bruck_all_gather_phases(case: Case) -> tuple[Phase, ...]:
    """A phase per exchange."""
    member, have, phases = np.arange(case.n), 1, []
    while have < case.n:
        count = min(have, case.n - have)
        phases.append(Phase(member, (member - have) % case.n, np.full(case.n, count / case.n)))
        have += count
    return tuple(phases)


def bruck_all_to_all_phases(case: Case) -> tuple[Phase, ...]:
    """A phase per exchange."""
    if case.splits is not None:
        return phases_of(bruck_all_to_all(case), case.n, pair_chunks(case))
    member, distance = np.arange(case.n), np.arange(case.n)
    return tuple(
        Phase(member, (member + (1 << k)) % case.n, np.full(case.n, np.count_nonzero((distance >> k) & 1) / case.n))
        for k in range((case.n - 1).bit_length())
    )
