"""Pipelines as programs: a schedule is a list of actions for each rank, an action (kind, stage, microbatch).

Kinds: F forward, B whole backward, I its first half (gradient of the input), W its second half (of the weights).
"""

from __future__ import annotations

from jobs import compute, job, recv, replay, send, wait

PHASES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


def one_f_one_b(p, m, *, extra=0, split=False, delay=0):
    """1F1B with ``p - rank`` forwards before the first backward and ``extra`` more per rank after it; a split backward
    does its second half ``delay`` x rank microbatches later."""
    orders = []
    for rank in range(p):
        warm = min(p - rank + extra * (p - rank - 1), m)
        actions = [("F", rank, j) for j in range(warm)]
        weights = 0
        for j in range(m):
            actions.append(("I" if split else "B", rank, j))
            if split and j >= delay * rank:
                actions.append(("W", rank, weights))
                weights += 1
            if j + warm < m:
                actions.append(("F", rank, j + warm))
        actions += [("W", rank, j) for j in range(weights, m)] if split else []
        orders.append(actions)
    return orders


def zb_h1(p, m):
    """Qi 2024, section 2.1: as many microbatches in flight as in 1F1B; rank i does each W i microbatches later."""
    return one_f_one_b(p, m, split=True, delay=1)


def zb_h2(p, m):
    """Section 2.2: 2(p-i)-1 forwards before the first backward of rank i."""
    return one_f_one_b(p, m, extra=1, split=True, delay=2)


def gpipe(p, m):
    return [[(kind, rank, j) for kind in "FB" for j in range(m)] for rank in range(p)]


def interleaved(p, m, chunks=2):
    """Interleaved 1F1B (Narayanan 2021, section 2.2.2): rank r has stages r, p + r, ...; m is a multiple of p."""
    orders = []
    for rank in range(p):
        ways = {}
        for kind in "FB":
            turns = range(chunks) if kind == "F" else range(chunks)[::-1]
            ways[kind] = [(kind, c * p + rank, j) for g in range(0, m, p) for c in turns for j in range(g, g + p)]
        warm = min(2 * (p - rank - 1) + (chunks - 1) * p, m * chunks)
        pairs = zip(ways["F"][warm:], ways["B"], strict=False)
        orders.append(ways["F"][:warm] + [a for pair in pairs for a in pair] + ways["B"][m * chunks - warm :])
    return orders


def pipeline_job(orders, times, size=1):
    """One program per rank. ``times``: seconds of each kind (B: of I and W together). Messages are ``size`` bytes."""
    ranks = {stage: rank for rank, actions in enumerate(orders) for _, stage, _ in actions}
    programs = []
    for rank, actions in enumerate(orders):
        ops = []
        for kind, stage, microbatch in actions:
            before, after = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
            moves = kind != "W"
            way = kind == "F"  # messages of one direction and stage have a stream of their own
            if moves and ranks.get(before, rank) != rank:
                stream, tag = f"{way} to {stage}", 2 * stage + way
                ops.append(recv(len(ops), ranks[before], size, stream=stream, tag=tag))
                ops.append(wait(len(ops), len(ops) - 1))
            tags = {"phase": PHASES[kind], "stage": stage, "microbatch": microbatch}
            ops.append(compute(len(ops), times[kind], **tags))
            if moves and ranks.get(after, rank) != rank:
                stream, tag = f"{way} to {after}", 2 * after + way
                ops.append(send(len(ops), ranks[after], size, stream=stream, tag=tag, deps=[len(ops) - 1]))
        programs.append(ops)
    return job({"pp": len(orders)}, *programs)


def spans_of(orders, times, topology):
    """Step, and for each rank the time from its first to its last action, of a replay of ``orders``."""
    return busy_spans(replay(pipeline_job(orders, times), topology))


def busy_spans(found):
    """Step seconds, and (first start, last end) of the compute ops that take time, for each rank class."""
    spans = {}
    for line in found.timeline:
        worked = [(float(a), float(b)) for a, b in zip(line.start, line.end, strict=True) if float(b) - float(a) > 1e-9]
        if line.stream == "compute" and worked:
            spans[line.rank_class] = (min(a for a, _ in worked), max(b for _, b in worked))
    return found.step_seconds, spans
