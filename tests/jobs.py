"""Small jobs written by hand: ops in one line each, and a way to replay them without a device model."""

from __future__ import annotations

import numpy as np

from emulator.replay.simulate import Job, Options, simulate
from emulator.report.partition import partition
from emulator.topology.load import load
from emulator.trace.expand import templates
from emulator.trace.schema import Group, Mesh, Op, Program, Trace


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
    """A trace on a mesh ``{axis: size}``; groups default to one per axis; ranks to one program each, or all the same."""
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
