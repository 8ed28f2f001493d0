"""Results made by hand for the tests of report and view: small, but with everything a replay fills in."""

from __future__ import annotations

import msgspec

from emulator.report.partition import fill
from emulator.result.build import Span, result
from emulator.result.schema import CollectiveUse, DeviceInfo, Engine, Folding, LinkUse, Result, TopologyInfo, TraceInfo

MS = 1e-3


def gather(layer: int, start: float, transfer: float, end: float, phase: str) -> Span:
    return Span(
        "c10d::_allgather_base_", start, end, "collective", "fsdp", transfer, phase=phase, layer=layer, group="fsdp",
        collective="all_gather", algorithm="ring", bytes=218_000_000,
    )  # fmt: skip


def fsdp_rank(layers: int = 4) -> list[Span]:
    """Forward and backward of an FSDP rank: gathers prefetched one layer ahead, gradients scattered on the way back."""
    spans = [gather(0, 0.0, 0.0, 2 * MS, "forward")]
    t = 2 * MS
    for layer in range(layers):
        if layer + 1 < layers:
            spans.append(gather(layer + 1, t, t, t + 2 * MS, "forward"))
        spans.append(
            Span("aten::mm", t, t + 5 * MS, phase="forward", layer=layer, op_class="gemm", flops=4e12, deps=[2 * layer])
        )  # fmt: skip
        t += 5 * MS
    for layer in reversed(range(layers)):
        spans.append(Span("aten::mm", t, t + 10 * MS, phase="backward", layer=layer, op_class="gemm", flops=8e12))
        t += 10 * MS
        spans.append(
            Span(
                "c10d::_reduce_scatter_base_", t, t + 4 * MS, "collective", "fsdp", t + 0.5 * MS, [len(spans) - 1],
                phase="backward", layer=layer, group="fsdp", collective="reduce_scatter", algorithm="ring",
                bytes=436_000_000,
            )
        )  # fmt: skip
    spans.append(
        Span(
            "aten::_fused_adamw_",
            t + 4 * MS,
            t + 7 * MS,
            phase="optimizer",
            op_class="optimizer",
            deps=[len(spans) - 1],
        )
    )
    return spans


def fsdp_result() -> Result:
    """64 ranks of one class with two streams, and figures for every table."""
    made = fill(result([fsdp_rank()], [64]))
    return msgspec.structs.replace(
        made,
        trace=TraceInfo(
            "llama.json", "llama3-8b", {"fsdp": 8, "tp": 8}, "bfloat16", "torch-fake", 8.03e9, 65536.0, 3.2e15,
            "matrix products 6NT without the input embedding, attention with its causal half", ["fsdp", "tp"], [8, 8],
        ),
        topology=TopologyInfo(
            "fattree", "8 nodes of 8 H100 on NVSwitch, one 400 Gbit/s rail NIC per GPU, 8 leaf and 4 spine switches",
            64, 512, 160, "spread", {"spine.oversubscription": "2"},
        ),
        device=DeviceInfo("H100-SXM", 989e12, "bfloat16", 80e9, "roofline, sustained", "compile", 109, 17),
        time_sources={"measured": 0, "modelled": 9, "scaled": 0},
        collectives=[
            CollectiveUse(
                "all_gather", "fsdp", 8, 0, 4, 218_000_000, "bfloat16", "ring", 2e-3, 1.8e-3, 0.0, 109e9, 95.4e9, 0.1
            ),
            CollectiveUse(
                "reduce_scatter", "fsdp", 8, 0, 4, 436_000_000, "float32", "hierarchical", 3.5e-3, 3.5e-3, 0.5e-3,
                124.6e9, 109e9, 0.0,
            ),
            CollectiveUse("barrier", "world", 64, 0, 1, 0, "", "direct", 1e-5, 1e-5, 0.0, None, None, None),
        ],
        links=[
            LinkUse("gpu0>leaf0", "nic", 64, 50e9, 2.1e9, 0.61, ["fsdp", "world"]),
            LinkUse("gpu0>nvswitch0", "nvlink", 64, 450e9, 1.1e9, 0.035, ["fsdp"]),
        ],
        folding=Folding(True, "colour refinement", 1, 64, 2, 9, 4, 512, 3, 18, 1152),
        warnings=["host times are not in the trace: the host is taken to be never late"],
        engine=Engine(events=1234, solves=56, cpu_seconds=0.12),
        mfu=0.42,
        tokens_per_second=1.0e6,
    )  # fmt: skip


def gpipe(stages: int, microbatches: int, forward: float = 1.0, backward: float = 2.0) -> list[list[Span]]:
    """All forwards, then all backwards; every hop is free. Receives are posted when the stage is free."""
    ranks: list[list[Span]] = [[] for _ in range(stages)]
    free = [0.0] * stages
    for phase, seconds, order in (("forward", forward, range(stages)), ("backward", backward, range(stages)[::-1])):
        for m in range(microbatches):
            arrived = 0.0
            before = order[0]
            for stage in order:
                spans, start = ranks[stage], max(free[stage], arrived)
                deps = []
                if stage != order[0]:
                    deps = [len(spans)]
                    came = before if arrived >= free[stage] else stage
                    spans.append(Span("recv", free[stage], start, "recv", "pp", start, group="pp", arrived_last=came))
                spans.append(
                    Span("aten::mm", start, start + seconds, phase=phase, microbatch=m, stage=stage, deps=deps)
                )
                if stage != order[-1]:
                    done = start + seconds
                    spans.append(Span("send", done, done, "send", "pp", deps=[len(spans) - 1], group="pp"))
                free[stage] = arrived = start + seconds
                before = stage
    return ranks


def pipeline_result() -> Result:
    """Four stages of 8 microbatches, each stage 16 ranks."""
    return fill(result(gpipe(4, 8, 10 * MS, 20 * MS), [16] * 4))
