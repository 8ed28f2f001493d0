"""What ``emu verify`` does: find out what is to be proved, and prove it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from emulator.errors import InputError
from emulator.verify.report import Progress, Report

MOST_PROCESSES = 64


def verify_command(
    target: str | None,
    arguments: Sequence[str] = (),
    *,
    collective: str | None = None,
    algorithms: str = "",
    ranks: int = 4,
    elements: Sequence[int] = (),
    topologies: Sequence[str] = (),
    device: str | None = None,
    lowering: str | None = None,
    overrides: Mapping[str, str] | None = None,
    orders: int = 2,
    steps: int = 3,
    time_limit: float = 300.0,
    progress: Progress = lambda _text: None,
) -> Report:
    """Prove a trace, a workload (``target``, with its own ``arguments``) or a ``collective``.

    Raises InputError, with one line, if it cannot be run: then nothing is proved and nothing disproved.
    """
    require_torch("verify")
    unknown = next((text for text in (target or "", *arguments) if text.startswith("-")), None)
    if unknown is not None and not (target or "").endswith(".py"):
        raise InputError(f"No such option: {unknown}", remedy="`emu verify --help` shows what it takes")
    if (target is None) == (collective is None):
        raise InputError(
            "give a trace, a workload, or --collective", source="verify",
            remedy="for example: emu verify --collective all_reduce --algo ring --ranks 4",
        )  # fmt: skip
    if not time_limit > 0:
        raise InputError(f"must be positive, is {time_limit:g}", source="--time-limit")
    if collective is not None:
        return _collective(
            collective, algorithms, ranks, elements, topologies, overrides, time_limit=time_limit, progress=progress
        )
    assert target is not None
    if target.endswith(".py"):
        from emulator.verify.strategy import verify_strategy  # noqa: PLC0415

        return verify_strategy(target, arguments, steps=steps, time_limit=time_limit, progress=progress)
    if arguments:
        raise InputError(f"a trace takes no {arguments[0]}", source="verify", remedy="see emu verify --help")
    from emulator.verify.trace import verify_trace  # noqa: PLC0415

    return verify_trace(
        target, topologies=topologies or ("fattree",), device=device, algorithms=algorithms, lowering=lowering,
        overrides=overrides, seeds=range(1, orders + 1), time_limit=time_limit, progress=progress,
    )  # fmt: skip


def require_torch(source: str) -> None:
    """Raise InputError where there is no torch to execute anything with."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("verifying needs torch", source=source, remedy="pip install 'emu-cluster[torch]'")


def _collective(
    collective: str,
    algorithm: str,
    ranks: int,
    elements: Sequence[int],
    topologies: Sequence[str],
    overrides: Mapping[str, str] | None,
    *,
    time_limit: float,
    progress: Progress,
) -> Report:
    from emulator.network import collectives  # noqa: PLC0415
    from emulator.topology.load import load  # noqa: PLC0415
    from emulator.verify.collectives import verify_collective  # noqa: PLC0415

    if not 1 <= ranks <= MOST_PROCESSES:
        raise InputError(f"1 to {MOST_PROCESSES} processes, not {ranks}", source="--ranks")
    if len(topologies) > 1:
        raise InputError("a collective is proved on one topology at a time", source="--topo")
    if any(count < 0 for count in elements):
        raise InputError("must not be negative", source="--elements")
    if collective == "send" and ranks != 2:
        raise InputError(f"a send has two members, not {ranks}", source="--ranks")
    topology = load(topologies[0], ranks=ranks, overrides=overrides or {}) if topologies else None
    name = collective if collective == "all" else collectives.canonical(collective)
    return verify_collective(
        name, algorithm=collectives.canonical(algorithm) if algorithm else "", ranks=ranks, topology=topology,
        sizes=elements or None, time_limit=time_limit, progress=progress,
    )  # fmt: skip
