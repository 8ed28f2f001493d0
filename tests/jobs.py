"""Small jobs written by hand: ops in one line each, and a way to replay them without a device model."""

from __future__ import annotations

import numpy as np

from emulator.replay.simulate import Job, Options, simulate
from emulator.report.partition import partition
from emulator.topology.load import load
from emulator.trace.expand import templates
from emulator.trace.schema import BlockUse, Group, Mesh, Op, Program, RanksByAxis, Trace


def compute(id, seconds, **more):
    return Op(id=id, kind="compute", duration=seconds, **more)


def wait(id, *deps, stream="compute", **more):
    return Op(id=id, kind="wait", deps=list(deps), stream=stream, **more)


def collective(id, kind, group, size, *, stream="comm", deps=(), **more):
    sides = {"all_gather": {"bytes_out": size}, "reduce_scatter": {"bytes_in": size}}
    both = {"bytes_in": size, "bytes_out": size}
    return Op(
        id=id, kind="collective", collective=kind, group=group, dtype="uint8", stream=stream, deps=list(deps),
        **sides.get(kind, both), **more,
    )  # fmt: skip


def send(id, peer, size, *, stream="p2p", deps=(), **more):
    return Op(id=id, kind="send", peer=peer, bytes_in=size, dtype="uint8", stream=stream, deps=list(deps), **more)


def recv(id, peer, size, *, stream="p2p", deps=(), **more):
    return Op(id=id, kind="recv", peer=peer, bytes_out=size, dtype="uint8", stream=stream, deps=list(deps), **more)


def job(axes, *programs, ranks=None, groups=None, blocks=None):
    """A trace on a mesh ``{axis: size}``; groups default to one per axis, ranks to one program each or all the same."""
    world = int(np.prod(list(axes.values())))
    if ranks is None:
        ranks = [(world, 0)] if len(programs) == 1 else [(1, p) for p in range(len(programs))]
    return Trace(
        mesh=Mesh(list(axes), list(axes.values())),
        programs=[Program(list(ops)) for ops in programs],
        ranks=ranks,
        groups={axis: Group(axes=[axis]) for axis in axes} if groups is None else groups,
        blocks=blocks or {},
    )


def star(tmp_path, size, bandwidth="1 GB/s", latency="0 s"):
    """One switch that never blocks, from a topology file."""
    path = tmp_path / f"star{size}.yaml"
    path.write_text(
        "name: star\ndescription: one switch\nrouting: spread\nlevels:\n"
        f"  node: {{kind: switch, size: {size}, bandwidth: {bandwidth}, latency: {latency}}}\n"
    )
    return load(str(path), ranks=size)


def replay(trace, topology, **options):
    ops = templates(trace).ops
    seconds = [0.0 if op.duration is None else op.duration for op in ops]
    sources = ["none" if op.duration is None else "measured" for op in ops]
    return simulate(Job(trace, seconds, sources, "job"), topology, Options(**options))


def spans(found, rank=0):
    """The rows of one rank as {row: (start, transfer_start, end)}."""
    rank_class = class_of(found, rank)
    table = {}
    for line in found.timeline:
        if line.rank_class == rank_class:
            for row, *times in zip(line.op, line.start, line.transfer_start, line.end, strict=True):
                table[int(row)] = tuple(float(t) for t in times)
    return table


def class_of(found, rank):
    for ranks in found.ranks:
        for part in ranks.ranks.split(","):
            first, _, last = part.partition("-")
            if int(first) <= rank <= int(last or first):
                return ranks.rank_class
    raise AssertionError(f"rank {rank} is in no class")


def parts(found, rank=0):
    """The partition of one rank's step."""
    ranks = found.ranks[class_of(found, rank)]
    own = [line for line in found.timeline if line.rank_class == ranks.rank_class]
    return partition(found.programs[ranks.program], own, found.step_seconds)


def pipeline(stages, microbatches, forward=1e-3, backward=2e-3, size=10**6, world=None):
    """1F1B: some forwards, then forward and backward in turn (one repeated block), then the backwards left."""
    programs, blocks = [], {}

    def part(ids, stage, direction, seconds):
        """Receive, compute and send of one microbatch; ``ids`` makes them unique in their list."""
        step = 1 if direction == "forward" else -1
        ops, here = [], ids
        if 0 <= stage - step < stages:
            ops += [recv(here, {"pp": -step}, size, stream=f"{direction}-in"), wait(here + 1, here)]
        ops.append(compute(here + 2, seconds, phase=direction))
        if 0 <= stage + step < stages:
            ops.append(send(here + 3, {"pp": step}, size, stream=f"{direction}-out", deps=[here + 2]))
        return ops

    for stage in range(stages):
        blocks[f"f{stage}"] = part(0, stage, "forward", forward)
        blocks[f"b{stage}"] = part(0, stage, "backward", backward)
        blocks[f"fb{stage}"] = part(0, stage, "forward", forward) + part(10, stage, "backward", backward)
        warm = min(stages - 1 - stage, microbatches)
        uses = [
            BlockUse(f"f{stage}", warm, {"microbatch": "0+1"}),
            BlockUse(f"fb{stage}", microbatches - warm, {"microbatch": f"{warm}+1"}),
            BlockUse(f"b{stage}", warm, {"microbatch": f"{microbatches - warm}+1"}),
        ]
        programs.append([use for use in uses if use.repeat > 0])
    axes = {"pp": stages} if world is None else {"pp": stages, "dp": world // stages}
    trace = job(axes, *programs, blocks=blocks)
    trace.ranks = RanksByAxis("pp", list(range(stages)))
    return trace
