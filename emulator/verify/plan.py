"""A collective schedule ready to be carried out: the steps of the network package with sizes in elements.

The steps are those that the simulator turns into flows (:mod:`emulator.network.collectives`); nothing is defined a
second time here. :func:`count_contributions` plays them with tallies instead of data: who is in what sum, how often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from emulator.network import collectives
from emulator.network.collectives import Grid, Step
from emulator.rows import offsets

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


@dataclass(frozen=True, eq=False)
class Plan:
    """One collective, one algorithm, one group, one size.

    ``members`` take part; ``players`` are the members and, behind them, whatever else the steps name (switches that
    reduce in the network). ``sizes`` i64[C]: elements per chunk. ``before``, ``after`` bool[players, C]: chunks held at
    the start and promised at the end. ``splits`` i64[n, n]: elements from member to member of an uneven all-to-all.
    """

    collective: str
    algorithm: str
    members: int
    players: int
    steps: tuple[Step, ...]
    sizes: Ints
    before: Bools
    after: Bools
    root: int = 0
    splits: Ints | None = None
    domains: Ints | None = None
    grid: Grid | None = None

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        root = f", root {self.root}" if self.collective in ROOTED else ""
        splits = ", uneven" if self.splits is not None else ""
        return f"{self.collective} {self.algorithm}, {self.members} ranks, {self.elements} elements{root}{splits}"

    @property
    def elements(self) -> int:
        """Elements of all chunks together."""
        return int(self.sizes.sum())

    @property
    def reduces(self) -> bool:
        """Whether chunks are summed up."""
        return self.collective in REDUCING

    @property
    def tells_only(self) -> bool:
        """Whether messages carry no data (a barrier): then hearing of everyone is the result."""
        return self.collective == "barrier"

    @property
    def parts(self) -> int:
        """Chunks per member's part (per pair of members, of an all-to-all)."""
        whole = self.members**2 if self.collective == "all_to_all" else self.members
        return len(self.sizes) // whole

    def offsets(self) -> Ints:
        """Where each chunk begins in a buffer of all chunks, and its length: i64[C + 1]."""
        return offsets(self.sizes)

    def with_steps(self, steps: Sequence[Step]) -> Plan:
        """The same promise with other steps."""
        return replace(self, steps=tuple(steps))


def plan(
    collective: str,
    algorithm: str,
    n: int,
    elements: int,
    *,
    domains: Sequence[int] | Ints | None = None,
    grid: Grid | None = None,
    root: int = 0,
    splits: Ints | None = None,
) -> Plan:
    """The schedule of an algorithm for S = ``elements``; ``splits`` are in elements and replace S.

    Where switches add up or copy, what the members exchange goes through a player of its own. Arguments and errors are
    otherwise those of the network package.
    """
    parts = None if splits is None else np.asarray(splits, dtype=np.float64)
    steps = tuple(collectives.steps(collective, algorithm, n, domains=domains, grid=grid, root=root, splits=parts))
    fractions = collectives.chunks(collective, algorithm, n, domains=domains, grid=grid, root=root, splits=parts)
    if collectives.switches_for(collective, algorithm) is not None:
        steps = tuple(through_a_switch(steps, n))
    if splits is not None:
        elements = int(np.asarray(splits).sum(axis=-1).max())
    if collective == "all_to_all":  # every member cuts an input of its own
        rows = fractions.reshape(n, -1)
        sizes = np.concatenate([collectives.chunk_elements(row, elements) for row in rows])
    elif collective == "barrier":
        sizes = np.full(len(fractions), n, dtype=np.int64)
    else:
        sizes = collectives.chunk_elements(fractions, elements)
    before, after = collectives.holdings(collective, n, len(fractions), root=root)
    players = max([n, *(1 + int(max(step.src.max(), step.dst.max())) for step in steps if len(step.src))])
    extra = np.zeros((players - n, len(sizes)), dtype=bool)
    return Plan(
        collective=collective, algorithm=algorithm, members=n, players=players, steps=steps, sizes=sizes,
        before=np.concatenate([before, extra]), after=np.concatenate([after, extra]), root=root, splits=splits,
        domains=None if domains is None else np.asarray(domains), grid=grid,
    )  # fmt: skip


def through_a_switch(steps: Sequence[Step], n: int) -> Iterator[Step]:
    """Exchanges as a reducing switch (player ``n``) carries them out: everyone sends a chunk up once.

    What a step adds at the receivers is added in the switch, in the order of the entries, and goes down once; what it
    copies to several receivers goes up once and is copied there.
    """
    for step in steps:
        if step.reduce:
            up = np.arange(len(step.src))
        else:
            _, up = np.unique(step.src * (1 + int(step.chunk.max(initial=0))) + step.chunk, return_index=True)
        _, down = np.unique(step.dst * (1 + int(step.chunk.max(initial=0))) + step.chunk, return_index=True)
        switch = np.full(len(step.src), n)
        yield Step(step.src[up], switch[up], step.chunk[up], step.reduce)
        yield Step(switch[down], step.dst[down], step.chunk[down], step.reduce)


def count_contributions(what: Plan) -> tuple[NDArray[np.int32], list[str]]:
    """Play the steps with tallies: i32[players, C, n], how often each member's contribution is in each slot.

    Also says which entries send a chunk that the sender does not hold, as ``step 3: member 0 ...``.
    """
    players, chunks = what.before.shape
    held = np.zeros((players, chunks, what.members), dtype=np.int32)
    member, chunk = np.nonzero(what.before[: what.members])
    held[member, chunk, member] = 1
    present = what.before.copy()
    faults = []
    for number, step in enumerate(what.steps):
        missing = ~present[step.src, step.chunk] & (what.sizes[step.chunk] > 0)
        faults += [
            f"step {number}: {player(what, step.src[e])} sends chunk {step.chunk[e]}, which it does not hold"
            for e in np.flatnonzero(missing).tolist()
        ]
        sent = held[step.src, step.chunk]
        if what.tells_only:
            np.maximum.at(held, (step.dst, step.chunk), sent)
        elif step.reduce:
            np.add.at(held, (step.dst, step.chunk), sent)
        else:
            held[step.dst, step.chunk] = sent
        present[step.dst, step.chunk] = True
    return held, faults


def definition_faults(what: Plan) -> Iterator[str]:
    """What the steps do not keep of what the collective promises, located by member and chunk."""
    held, faults = count_contributions(what)
    yield from faults
    promised = what.before[: what.members]
    for member, chunk in np.argwhere(what.after & (what.sizes > 0)).tolist():
        wrong = explain(held[member, chunk], promised[:, chunk])
        if wrong:
            yield f"{player(what, member)}, chunk {chunk}: {wrong}{_last_writer(what, member, chunk)}"


def explain(tally: NDArray[np.int32], promised: Bools) -> str:
    """In words, how a slot's tally differs from having every promised contribution once; empty if it does not."""
    lacks = np.flatnonzero((tally == 0) & promised).tolist()
    often = np.flatnonzero((tally > 1) & promised).tolist()
    foreign = np.flatnonzero((tally > 0) & ~promised).tolist()
    words = []
    if lacks:
        words.append(f"lacks the contribution of {_listed(lacks)}")
    words += [f"has the contribution of rank {m} {tally[m]} times" for m in often[:3]]
    if foreign:
        words.append(f"has data of {_listed(foreign)}, which contributed none")
    return ", ".join(words)


def player(what: Plan, number: int) -> str:
    """A player by name."""
    return f"rank {number}" if number < what.members else f"switch {number - what.members}"


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _last_writer(what: Plan, member: int, chunk: int) -> str:
    for number in reversed(range(len(what.steps))):
        step = what.steps[number]
        entries = np.flatnonzero((step.dst == member) & (step.chunk == chunk))
        if len(entries):
            return f" (last written in step {number} by {player(what, int(step.src[entries[-1]]))})"
    return " (no step writes it)"
