"""What stands out in a result, each with the figures that show it: rules of thumb of parallel training as checks.

A rule speaks only where its figures are in the result; ``docs/report.md`` lists rules and thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emulator.report import figures
from emulator.report.bubbles import CAUSES
from emulator.report.changes import describe
from emulator.report.kinds import kind_of_group
from emulator.report.memory import peaks
from emulator.report.pieces import pipeline_phase
from emulator.result.schema import CollectiveUse, LinkUse, Result

BUBBLE = 0.10
EXPOSED = 0.05
WAITING = 0.02
HOST = 0.05
CONGESTION = 0.20
SLOWER_LINK = 0.5  # of the fastest link's capacity: below it a link counts as outside the node
ACTIVATIONS = 0.5  # of the memory at its peak
FITS = 0.5  # of the device's memory that parameters and optimizer may take to leave room for activations


@dataclass(frozen=True)
class Hint:
    """One thing that stands out. ``rule`` names it for a program, ``text`` says it with its figures."""

    rule: str
    text: str


def hints(result: Result) -> list[Hint]:
    """Everything that stands out, in a fixed order."""
    if not result.step_seconds > 0:
        return []
    return [Hint(rule.__name__.strip("_"), text) for rule in RULES for text in rule(result)]


def _bubble(result: Result) -> Iterator[str]:
    """The bubble is over a tenth of the step."""
    piped = [ranks for ranks in result.ranks if ranks.bubble_seconds is not None]
    total = sum(ranks.count for ranks in piped)
    mean = sum((ranks.bubble_seconds or 0.0) * ranks.count for ranks in piped) / total if total else 0.0
    if mean < BUBBLE * result.step_seconds:
        return
    text = (
        f"bubble {figures.seconds(mean)} per rank on average, {figures.percent(mean, result.step_seconds)} of the step"
    )
    causes = {
        name: sum(getattr(r.bubble, f"{name}_seconds") * r.count for r in piped if r.bubble) / total for name in CAUSES
    }
    largest = max(causes, key=lambda name: causes[name])
    if causes[largest]:
        text += f", most of it {largest} ({figures.seconds(causes[largest])})"
    yield text + _more_microbatches(result, causes["fill"] + causes["drain"], mean)


def _more_microbatches(result: Result, travel: float, mean: float) -> str:
    """What (p-1)/(m+p-1) says of twice as many microbatches, where fill and drain are most of the bubble."""
    counts = [int(program.microbatch.max(initial=-1)) + 1 for program in result.programs]
    stages = dict(zip(result.trace.mesh_axes, result.trace.mesh_shape, strict=False)).get("pp", 0)
    if travel < mean / 2 or not stages or max(counts, default=0) < 1 or pipeline_phase(result) is None:
        return ""
    now, then = ((stages - 1) / (m * max(counts) + stages - 1) for m in (1, 2))
    return (
        f"; (p-1)/(m+p-1) is {figures.percent(now)} with {stages} stages and {max(counts)} microbatches, "
        f"{figures.percent(then)} with twice as many"
    )


def crossing(result: Result) -> list[tuple[str, LinkUse]]:
    """Tensor and expert parallel where it uses links much slower than the fastest, with the slowest of them."""
    fastest = _fastest(result)
    found = []
    for kind in ("TP", "EP"):
        slow = [
            use
            for use in result.links
            if use.capacity_bytes_per_second < SLOWER_LINK * fastest and kind in map(kind_of_group, use.groups)
        ]
        if slow:
            found.append((kind, min(slow, key=lambda use: use.capacity_bytes_per_second)))
    return found


def _fastest(result: Result) -> float:
    """Bytes/s of the widest link that carried anything."""
    return max((use.capacity_bytes_per_second for use in result.links), default=0.0)


def _crossing(result: Result) -> Iterator[str]:
    """Tensor or expert parallel groups go over links much slower than the fastest."""
    fastest = _fastest(result)
    for kind, use in crossing(result):
        yield (
            f"{kind} goes over {use.level} ({figures.rate(use.capacity_bytes_per_second)}; the fastest links do "
            f"{figures.rate(fastest)}): {figures.percent(exposed_part(result, kind))} of the step is exposed {kind} "
            f"communication; groups inside a node avoid it{_gain(result, 'place')}"
        )


def _pipeline_inside(result: Result) -> Iterator[str]:
    """Pipeline stages talk inside the node while tensor parallel crosses nodes."""
    fastest = _fastest(result)
    met = {
        (kind_of_group(group), use.capacity_bytes_per_second < SLOWER_LINK * fastest)
        for use in result.links
        for group in use.groups
    }
    if ("TP", True) in met and ("PP", False) in met and ("PP", True) not in met:
        yield (
            f"PP stays on the fastest links ({figures.rate(fastest)}) while TP leaves them: swap the two axes, the "
            f"pipeline tolerates slow links best{_gain(result, 'place')}"
        )


def _exposed_fsdp(result: Result) -> Iterator[str]:
    """FSDP traffic is exposed: the batch per rank is small for the link."""
    share = exposed_part(result, "FSDP", waits=False)
    if share >= EXPOSED:
        tokens = _tokens_per_rank(result)
        size = f" at {figures.count(tokens)} tokens per rank and step" if tokens else ""
        yield (
            f"{figures.percent(share)} of the step is exposed FSDP transfer{size}: more tokens per rank, or fewer FSDP "
            f"ranks per parameter, hide it{_gain(result, 'free', 'FSDP')}"
        )


def _tokens_per_rank(result: Result) -> float:
    """Tokens that a rank works on: TP ranks and pipeline stages work on the same ones, all others have their own."""
    same = 1
    for axis, extent in zip(result.trace.mesh_axes, result.trace.mesh_shape, strict=False):
        same *= extent if kind_of_group(axis) in ("TP", "PP") else 1
    return result.trace.tokens_per_step * same / result.world_size


def _zero3(result: Result) -> Iterator[str]:
    """Parameters are gathered twice although parameters and optimizer states would fit without sharding the former."""
    gathered = {
        program.phase[row]
        for program in result.programs
        for row in _rows(program.collective.values, program.collective.codes.tolist(), "all_gather")
        if kind_of_group(program.group[row]) == "FSDP"
    }
    extents = dict(zip(result.trace.mesh_axes, result.trace.mesh_shape, strict=False))
    shards = next((extents[axis] for axis in ("fsdp", "dp_shard") if axis in extents), 0)
    memory = result.device.memory_bytes
    if not {"forward", "backward"} <= gathered or not shards or not memory or not result.trace.params:
        return
    others = 1
    for axis, extent in extents.items():
        others *= extent if kind_of_group(axis) in ("TP", "PP", "EP") else 1
    need = (4 + 12 / shards) * result.trace.params / others
    if need <= FITS * memory:
        yield (
            f"parameters are gathered again in backward (3P of traffic); ZeRO-1 (2P) would take {figures.size(need)} "
            f"of {figures.size(memory)} per rank for parameters, gradients and optimizer, before activations"
        )


def _tp_in_moe(result: Result) -> Iterator[str]:
    """A mixture of experts is cut by tensor parallel although experts could be spread."""
    grouped = any("grouped_gemm" in program.op_class.values for program in result.programs)
    kinds = {kind_of_group(use.group) for use in result.collectives}
    share = exposed_part(result, "TP")
    if grouped and "EP" not in kinds and share >= EXPOSED:
        yield (
            f"experts are cut by TP, {figures.percent(share)} of the step is exposed TP communication: EP moves less"
            f"{_gain(result, 'free', 'TP')}"
        )


def _straggler(result: Result) -> Iterator[str]:
    """Others wait for one class of ranks."""
    whole = result.step_seconds * result.world_size
    for ranks in result.ranks:
        late = ranks.lateness
        if late is not None and late.exposed_seconds >= WAITING * whole:
            yield (
                f"ranks {ranks.ranks} come last to {figures.several(late.collectives, 'collective')}: others wait, "
                f"exposed, for {figures.percent(late.exposed_seconds, whole)} of all ranks' time{_gain(result, 'even')}"
            )


def _host(result: Result) -> Iterator[str]:
    """The host is late."""
    share = _mean(result, lambda i: ((p := result.ranks[i].partition) and p.host_seconds) or 0.0)
    if share >= HOST:
        yield (
            f"for {figures.percent(share)} of the step ops only wait to be issued: fewer kernels or graphs help"
            f"{_gain(result, 'host')}"
        )


def _activations(result: Result) -> Iterator[str]:
    """Activations are most of the memory at its peak, and nothing is done about them."""
    phases = {phase for program in result.programs for phase in program.phase.values}
    # sequence parallel shows as reduce-scatters in the tensor parallel group, where else there are all-reduces
    spread = {kind_of_group(use.group) for use in result.collectives if use.collective == "reduce_scatter"}
    if "recompute" in phases or spread & {"TP", "SP"}:
        return
    for found in peaks(result)[:1]:
        held = found.categories.get("activation", 0.0)
        if held <= ACTIVATIONS * found.bytes:
            continue
        yield (
            f"activations are {figures.size(held)} of {figures.size(found.bytes)} at the peak on ranks "
            f"{result.ranks[found.rank_class].ranks}, without recomputation or sequence parallel: "
            "recomputing them, or sequence parallel, makes room for a larger batch"
        )


def _congestion(result: Result) -> Iterator[str]:
    """Transfers slow each other down."""
    for use in sorted(result.collectives, key=lambda use: -use.seconds * use.count):
        lost = use.count * max(0.0, use.seconds - use.alone_seconds)
        if use.congestion is not None and use.congestion >= CONGESTION and lost >= WAITING * result.step_seconds:
            yield (
                f"{kind_of_group(use.group)} {use.collective} of {figures.size(use.bytes)} takes "
                f"{figures.seconds(use.seconds)}, {figures.seconds(use.alone_seconds)} alone: links are shared "
                f"({figures.percent(use.congestion)} of the time{_lost_to(use)})"
            )
            return


def _lost_to(use: CollectiveUse) -> str:
    """What cost a transfer most."""
    parts = {
        "to other streams of the same ranks": use.own_rank_seconds,
        "to other ranks": use.other_ranks_seconds,
        "to links slower than usual": use.slower_links_seconds,
    }
    most = max(parts, key=lambda name: parts[name])
    return f", {figures.percent(parts[most], use.seconds)} {most}" if parts[most] > 0 else ""


RULES: tuple[Callable[[Result], Iterator[str]], ...] = (
    _bubble, _crossing, _pipeline_inside, _exposed_fsdp, _zero3, _tp_in_moe, _straggler, _host, _activations,
    _congestion,
)  # fmt: skip


def _gain(result: Result, change: str, kind: str = "") -> str:
    """What a replay with that change (to groups of that kind) said of the step, where there was one."""
    for entry in result.what_if:
        if entry.change == change and (not kind or kind_of_group(entry.target) == kind):
            return (
                f" (replayed, {describe(entry)}: {figures.change(entry.step_seconds, result.step_seconds)} of the step)"
            )
    return ""


def exposed_part(result: Result, kind: str, *, waits: bool = True) -> float:
    """Exposed communication of a kind, share of the step, mean over ranks."""
    return _mean(
        result,
        lambda i: sum(
            e.transfer_seconds + (e.wait_seconds if waits else 0.0) for e in result.ranks[i].exposed if e.kind == kind
        ),
    )


def _mean(result: Result, seconds: Callable[[int], float]) -> float:
    total = sum(ranks.count * seconds(i) for i, ranks in enumerate(result.ranks))
    return total / (sum(ranks.count for ranks in result.ranks) or 1) / result.step_seconds


def _rows(values: list[str], codes: list[int], wanted: str) -> list[int]:
    return [row for row, code in enumerate(codes) if values[code] == wanted]
