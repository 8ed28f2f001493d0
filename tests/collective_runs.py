"""Collectives on fabrics: their predicted seconds, and what happens when several run, by phases and chunk by chunk."""

from __future__ import annotations

import numpy as np
from built import build

from emulator.network import bind, collectives
from emulator.network.clock import Clock
from emulator.network.fluid import Network
from emulator.network.layout import layout
from emulator.network.steps_player import play

S = 256e6
B = 50e9
A = 2e-6


def place(fabric, members, collective, algorithm, **options):
    """Bound phases of one group; its layout is looked up in the fabric."""
    members = np.array([members])
    where = layout(fabric, members[0])
    phases = collectives.phases(
        collective, algorithm, members.shape[1], domains=where.domains, grid=where.grid, **options
    )
    return bind.bind(fabric, members, phases)


def seconds(fabric, members, collective, algorithm, size=S, **options):
    return bind.predict(place(fabric, members, collective, algorithm, **options), size)[0]


def run_phases(fabric, jobs, size=S):
    """Seconds of each of several collectives at once, as the engine runs them: latency, then one flow per phase."""
    clock = Clock()
    network = Network(clock, fabric.capacity)
    ends = {}

    def go(job, phases):
        if not phases:
            ends[job] = clock.now
            return
        phase = phases[0]
        route = network.route(phase.link, phase.weight)
        amount = phase.fraction * size
        begin = clock.now + phase.wait(amount)[0]
        clock.call_at(begin, lambda _: network.start(route, amount, lambda: go(job, phases[1:])))

    for job, (time, members, collective, algorithm) in enumerate(jobs):
        bound = place(fabric, members, collective, algorithm)
        clock.call_at(time, lambda _, job=job, bound=bound: go(job, bound))
    clock.run()
    return np.array([ends[job] - jobs[job][0] for job in range(len(jobs))]), network.link_bytes()


def run_steps(fabric, jobs, size=S):
    """The same, chunk by chunk."""
    clock = Clock()
    network = Network(clock, fabric.capacity)
    ends = {}
    for job, (time, listed, collective, algorithm) in enumerate(jobs):
        members = np.asarray(listed)
        where = layout(fabric, members)
        how = (collective, algorithm, len(members))
        steps = collectives.steps(*how, domains=where.domains, grid=where.grid)
        chunk_bytes = collectives.chunks(*how, domains=where.domains, grid=where.grid) * size
        done = lambda job=job: ends.update({job: clock.now})  # noqa: E731
        start = lambda _, m=members, s=steps, c=chunk_bytes, d=done: play(network, fabric, m, s, c, d)  # noqa: E731
        clock.call_at(time, start)
    clock.run()
    return np.array([ends[job] - jobs[job][0] for job in range(len(jobs))]), network.link_bytes()


def torus(shape, wrap=True, **top):
    return build(
        {"ici": {"kind": "torus", "shape": list(shape), "bandwidth": B, "latency": A, "wrap": wrap}},
        int(np.prod(shape)),
        **top,
    )
