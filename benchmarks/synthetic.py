"""Jobs made by formula, as `emu-trace/1` traces: for benchmarks of sizes nobody can record.

    python benchmarks/synthetic.py llama data=128 -o llama405b.json
    python benchmarks/synthetic.py gpipe data=32 tensor=8 stages=4 -o gpipe.json
    python benchmarks/synthetic.py pipeline stages=8 microbatches=32768 -o pipeline.json
    python benchmarks/synthetic.py collective kind=all_reduce ranks=1024 size=1073741824 -o all_reduce.json
    python benchmarks/synthetic.py computing ranks=4096 kernels=50 -o computing.json

Durations are given, so no cost model has a say. Then `emu run --trace FILE`, as with any other trace.
"""

from __future__ import annotations

import argparse
import inspect

import numpy as np

from emulator.trace import io
from emulator.trace.schema import (
    BlockUse,
    Collective,
    Group,
    Mesh,
    Meta,
    Op,
    PerRank,
    Phase,
    Program,
    RanksByAxis,
    Trace,
)

MIB = 2**20
ACTIVATIONS = 8192 * 16384 * 2  # sequence x hidden x 2 bytes, of one microbatch
LAYER_PARAMETERS = 3.2e9
ATTENTION_SECONDS, MLP_SECONDS = 5.5e-3, 11e-3


def kernel(op_id: int, seconds: float | PerRank, phase: Phase | None = None) -> Op:
    """A compute op with a measured time."""
    return Op(id=op_id, kind="compute", op_class="gemm", duration=seconds, phase=phase)


def collective(op_id: int, kind: Collective, group: str, size: int, stream: str = "compute", **more: object) -> Op:
    """A collective of S bytes (all-gather: output, reduce-scatter: input, others both); synchronous unless it has a
    stream of its own."""
    sides = {"all_gather": ("bytes_out",), "reduce_scatter": ("bytes_in",)}.get(kind, ("bytes_in", "bytes_out"))
    return Op(
        id=op_id, kind="collective", collective=kind, group=group, dtype="bfloat16", stream=stream,
        is_async=stream != "compute", **dict.fromkeys(sides, size), **more,
    )  # fmt: skip


def send(op_id: int, ahead: int, size: int, after: list, stream: str) -> Op:
    """A send to a neighbouring stage that nothing waits for until the end."""
    return Op(
        id=op_id, kind="send", peer={"pp": ahead}, bytes_in=size, dtype="bfloat16", stream=stream, deps=[after],
        is_async=True,
    )  # fmt: skip


def receive(op_id: int, ahead: int, size: int, stream: str = "compute") -> Op:
    """A receive from a neighbouring stage: posted when the compute stream gets there, or, on a stream of its own, from
    the beginning."""
    return Op(
        id=op_id, kind="recv", peer={"pp": ahead}, bytes_out=size, dtype="bfloat16", stream=stream,
        is_async=stream != "compute",
    )  # fmt: skip


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The schedule of one stage: ("F" or "B", microbatch) in order."""
    warm = min(stages - 1 - stage, microbatches)
    actions = [("F", m) for m in range(warm)]
    for m in range(microbatches - warm):
        actions += [("F", warm + m), ("B", m)]
    return actions + [("B", m) for m in range(microbatches - warm, microbatches)]


def llama(data: int = 128, stages: int = 16, tensor: int = 8, microbatches: int = 16, layers: int = 126) -> Trace:
    """A step like that of Llama 3 405B: 1F1B over the stages, per layer and direction twice (all-gather, compute,
    reduce-scatter) over the tensor axis, parameters gathered once (the next layer's while this one computes) and
    gradients reduced in the last backward over the data axis. Layers are spread as evenly as possible."""

    def layer(phase: Phase, first: float, second: float) -> list[Op]:
        return [
            collective(0, "all_gather", "tp", ACTIVATIONS, phase=phase), kernel(1, first, phase),
            collective(2, "reduce_scatter", "tp", ACTIVATIONS, phase=phase),
            collective(3, "all_gather", "tp", ACTIVATIONS, phase=phase), kernel(4, second, phase),
            collective(5, "reduce_scatter", "tp", ACTIVATIONS, phase=phase),
        ]  # fmt: skip

    forward = layer("forward", ATTENTION_SECONDS, MLP_SECONDS)
    backward = layer("backward", 2 * MLP_SECONDS, 2 * ATTENTION_SECONDS)
    gathered, reduced = int(2 * LAYER_PARAMETERS / tensor), int(4 * LAYER_PARAMETERS / tensor)

    def gather(op_id: int, deps: list) -> Op:
        return collective(op_id, "all_gather", "fsdp", gathered, "fsdp.all_gather", deps=deps, phase="forward")

    gate = Op(id=7, kind="wait", deps=[[1, 6], [0, 0, ""]])
    last_gate = Op(id=7, kind="wait", deps=[[0, 6, "gathering"], [0, 0, ""]])
    reduce = collective(6, "reduce_scatter", "gradients", reduced, "fsdp.reduce_scatter", deps=[5], phase="backward")
    blocks = {
        "forward": forward,
        "gathering": [gather(6, [[1, 5]]), gate, *forward],
        "gathered": [last_gate, *forward],
        "backward": backward,
        "reducing": [*backward, reduce],
    }

    def program(stage: int) -> Program:
        mine = layers // stages + (stage < layers % stages)
        before = sum(layers // stages + (s < layers % stages) for s in range(stage))
        ops: list[Op | BlockUse] = []
        number = 0
        sent: dict[str, int] = {}

        def use(block: str, m: int, count: int, first: int, step: int) -> None:
            if count:
                ops.append(BlockUse(block, count, {"layer": f"{first}{step:+d}", "microbatch": m}))

        def talk(op: Op) -> None:
            nonlocal number
            number += 1
            ops.append(op)

        for action, m in one_f_one_b(stage, stages, microbatches):
            if action == "F":
                if m == 0:
                    number = 1  # op 0 gathers the first layer
                if stage > 0:
                    talk(receive(number, -1, ACTIVATIONS // tensor))
                if m == 0:
                    ops.append(gather(0, [number - 1] if stage > 0 else []))
                    use("gathering", m, mine - 1, before, 1)
                    use("gathered", m, 1, before + mine - 1, 1)
                else:
                    use("forward", m, mine, before, 1)
                if stage < stages - 1:
                    sent["F"] = number
                    last = [0, 5, "gathered" if m == 0 else "forward"]
                    talk(send(number, 1, ACTIVATIONS // tensor, last, "pp.forward"))
            else:
                if stage < stages - 1:
                    talk(receive(number, 1, ACTIVATIONS // tensor))
                block = "reducing" if m == microbatches - 1 else "backward"
                use(block, m, mine, before + mine - 1, -1)
                if stage > 0:
                    sent["B"] = number
                    talk(send(number, -1, ACTIVATIONS // tensor, [0, 5, block], "pp.backward"))
        ops.append(Op(id=number, kind="wait", deps=[*sent.values(), [0, 6, "reducing"]]))
        ops.append(kernel(number + 1, ATTENTION_SECONDS, "optimizer"))
        return Program(ops)

    return Trace(
        meta=Meta(
            model="like Llama 3 405B", source="synthetic", dtype="bfloat16", layers=layers,
            tokens_per_step=8192 * microbatches * data, parallel={"pp": stages, "dp": data, "tp": tensor},
        ),
        mesh=Mesh(["pp", "dp", "tp"], [stages, data, tensor]),
        groups={"tp": Group(axes=["tp"]), "fsdp": Group(axes=["dp"]), "gradients": Group(axes=["dp"])},
        blocks=blocks, programs=[program(stage) for stage in range(stages)],
        ranks=RanksByAxis("pp", list(range(stages))),
    )  # fmt: skip


def gpipe(data: int = 32, tensor: int = 8, stages: int = 4, layers: int = 32, microbatches: int = 8) -> Trace:
    """All forwards, then all backwards; 32 MiB all-reduces after attention and MLP, 32 MiB between stages, and in the
    last microbatch's backward a 52 MiB all-reduce over the data axis per layer, awaited at the end. Receives are posted
    early, as in ASTRA-sim, where they cost nothing."""

    def layer(phase: Phase, first: float, second: float) -> list[Op]:
        return [
            kernel(0, first, phase), collective(1, "all_reduce", "tp", 32 * MIB, phase=phase),
            kernel(2, second, phase), collective(3, "all_reduce", "tp", 32 * MIB, phase=phase),
        ]  # fmt: skip

    backward = layer("backward", 1200e-6, 600e-6)
    reduce = collective(4, "all_reduce", "dp", 52 * MIB, "gradients", deps=[2], phase="backward")
    blocks = {
        "forward": layer("forward", 300e-6, 600e-6), "backward": backward,
        "reducing": [*backward[:3], reduce, backward[3]],
    }  # fmt: skip
    mine = layers // stages

    def program(stage: int) -> Program:
        ops: list[Op | BlockUse] = []
        for k in range(2 * microbatches):
            m, back = k % microbatches, k >= microbatches
            block = "forward" if not back else "reducing" if m == microbatches - 1 else "backward"
            source, target = (1, -1) if back else (-1, 1)
            direction = "pp.backward" if back else "pp.forward"
            if 0 <= stage + source < stages:
                early = receive(4 * k, source, 32 * MIB, f"{direction}.in")
                ops += [early, Op(id=4 * k + 1, kind="wait", deps=[4 * k])]
            first = stage * mine + (mine - 1 if back else 0)
            ops.append(BlockUse(block, mine, {"layer": f"{first}{'-' if back else '+'}1", "microbatch": m}))
            if 0 <= stage + target < stages:
                ops.append(send(4 * k + 2, target, 32 * MIB, [0, 3, block], direction))
        ops.append(Op(id=8 * microbatches, kind="wait", deps=[[0, 4, "reducing"]]))
        return Program(ops)

    return Trace(
        meta=Meta(model="GPipe", source="synthetic", layers=layers, parallel={"pp": stages, "dp": data, "tp": tensor}),
        mesh=Mesh(["pp", "dp", "tp"], [stages, data, tensor]),
        groups={"tp": Group(axes=["tp"]), "dp": Group(axes=["dp"])},
        blocks=blocks, programs=[program(stage) for stage in range(stages)],
        ranks=RanksByAxis("pp", list(range(stages))),
    )  # fmt: skip


def pipeline(
    stages: int = 8, microbatches: int = 1024, data: int = 1, size: int = 32 * MIB, seconds: float = 1e-3
) -> Trace:
    """1F1B and nothing else: forward of ``seconds``, backward of twice that, ``size`` bytes between stages. The steady
    state is one repeated block, so the file is as short for 32,768 microbatches as for 16."""

    def step(stage: int, back: bool, first_id: int) -> list[Op]:
        source, target = (1, -1) if back else (-1, 1)
        ops = []
        if 0 <= stage + source < stages:
            ops.append(receive(first_id, source, size))
        ops.append(kernel(first_id + 1, seconds * (1 + back), "backward" if back else "forward"))
        if 0 <= stage + target < stages:
            ops.append(send(first_id + 2, target, size, first_id + 1, "pp.backward" if back else "pp.forward"))
        return ops

    blocks: dict[str, list[Op]] = {}
    programs = []
    for stage in range(stages):
        place = "first" if stage == 0 else "last" if stage == stages - 1 else "middle"
        names = [f"{part} ({place})" for part in ("forward", "steady", "backward")]
        forward, backward = step(stage, False, 0), step(stage, True, 3)
        blocks |= dict(zip(names, (forward, forward + backward, backward), strict=True))
        warm = min(stages - 1 - stage, microbatches)
        uses = [BlockUse(name, n) for name, n in zip(names, (warm, microbatches - warm, warm), strict=True) if n]
        programs.append(Program([*uses, kernel(0, seconds, "optimizer")]))
    return Trace(
        meta=Meta(model="pipeline", source="synthetic", parallel={"pp": stages, "dp": data}),
        mesh=Mesh(["pp", "dp"], [stages, data]), blocks=blocks, programs=programs,
        ranks=RanksByAxis("pp", list(range(stages))),
    )  # fmt: skip


def one_collective(kind: Collective = "all_reduce", ranks: int = 1024, size: int = 2**30) -> Trace:
    """One collective of all ranks, of ``size`` bytes as its kind counts them."""
    return Trace(
        meta=Meta(model=kind, source="synthetic"), mesh=Mesh(["dp"], [ranks]), groups={"dp": Group(axes=["dp"])},
        programs=[Program([collective(0, kind, "dp", size)])], ranks=[(ranks, 0)],
    )  # fmt: skip


def computing(ranks: int = 4096, kernels: int = 50, equal: float = 0.0, seed: int = 1) -> Trace:
    """Ranks that never speak to each other: every kernel of every rank 1 us to 100 ms long, uniformly, or all of them
    ``equal`` seconds."""
    if equal:
        ops: list[Op | BlockUse] = [kernel(i, equal) for i in range(kernels)]
    else:
        seconds = np.random.default_rng(seed).uniform(1e-6, 0.1, (kernels, ranks))
        ops = [kernel(i, PerRank(["dp"], row)) for i, row in enumerate(seconds.tolist())]
    return Trace(
        meta=Meta(model="computing", source="synthetic"), mesh=Mesh(["dp"], [ranks]), programs=[Program(ops)],
        ranks=[(ranks, 0)],
    )  # fmt: skip


JOBS = {"llama": llama, "gpipe": gpipe, "pipeline": pipeline, "collective": one_collective, "computing": computing}


def make(job: str, settings: list[str]) -> Trace:
    """The job of that name with ``NAME=VALUE`` settings."""
    parameters = inspect.signature(JOBS[job]).parameters
    chosen = dict(setting.split("=", 1) for setting in settings)
    return JOBS[job](**{name: type(parameters[name].default)(value) for name, value in chosen.items()})


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    io.write(make(options.job, options.settings), options.output)


if __name__ == "__main__":
    main()
