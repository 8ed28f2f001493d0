"""Comparing what the processes of a collective ended with: with mathematics, with the model, with gloo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from emulator.verify.collectives import Outcome
from emulator.verify.plan import Plan, count_contributions, explain, player
from emulator.verify.schedule import Slots, exact

Tensor = Any


def dtypes_of(what: Plan, dtypes: Sequence[str]) -> list[str]:
    """The dtypes to run a plan in: a barrier carries no data, so it runs once."""
    return [d for d in dtypes if d == "int64"] if what.tells_only else list(dtypes)


def judge(
    what: Plan, dtype: str, number: int, buffers: Sequence[Mapping[str, Tensor]], models: Sequence[Slots]
) -> Outcome:
    """Compare the final slots of every player of plan ``number`` in one dtype."""
    findings: list[str] = []
    compared, worst = 0, 0.0
    tally, _ = count_contributions(what)
    offsets = what.offsets().tolist()
    for member, chunk in np.argwhere(what.after & (what.sizes > 0)).tolist():
        compared += 1
        part = slice(offsets[chunk], offsets[chunk + 1])
        ours = buffers[member][f"{number}.{dtype}.ours"][part]
        result, magnitude = exact(what, dtype, chunk)
        model = models[member].of(chunk)
        gloo = buffers[member].get(f"{number}.{dtype}.gloo")
        wrong = list(_differences(what, dtype, ours, result, magnitude, model))
        if gloo is not None:
            excess = _excess(what, dtype, ours, gloo[part], magnitude)
            worst = max(worst, excess)
            if not excess <= 1:
                wrong.append("differs from gloo's")
        if wrong:
            why = explain(tally[member, chunk], what.before[: what.members, chunk])
            findings.append(
                f"{what.name}, {dtype}: {player(what, member)}, chunk {chunk}: {'; '.join(wrong)}"
                + (f": {why}" if why else "")
            )
    return Outcome(findings, compared, worst)


def _differences(
    what: Plan, dtype: str, ours: Tensor, result: Tensor, magnitude: Tensor, model: Tensor
) -> Iterator[str]:
    if not _same_bits(ours, model):
        yield "differs from the single-process model"
    if dtype == "int64" or not what.reduces:
        if not torch.equal(ours.to(result.dtype), result):
            at = int((ours.to(result.dtype) != result).nonzero()[0])
            yield f"element {at} is {ours[at].item()}, the result is {result[at].item()}"
    elif not _excess(what, dtype, ours, result, magnitude) <= 1:
        at = int((ours.double() - result).abs().nan_to_num(float("inf")).argmax())
        yield f"element {at} is {ours[at].item():.6g}, the result is {result[at].item():.6g}"


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def _excess(what: Plan, dtype: str, ours: Tensor, other: Tensor, magnitude: Tensor) -> float:
    """Largest difference as a part of what two orders of the same sum may differ by: (n-1) eps sum|x|, to first order
    (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). Where nothing is added any difference is too much."""
    difference = (ours.double() - other.double()).abs()
    if dtype == "int64" or not what.reduces:
        return 0.0 if not difference.any() else float("inf")
    rounding = (what.members - 1) * torch.finfo(getattr(torch, dtype)).eps
    bound = rounding / (1 - rounding) * magnitude.double()
    part = torch.where(difference == 0, torch.zeros_like(difference), difference / bound)
    return float(part.nan_to_num(nan=float("inf")).max())
