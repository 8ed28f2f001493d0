"""Strategies for the fabrics beyond Clos, torus and full mesh."""

from __future__ import annotations

from built import build
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from emulator.topology.graph import Topology


@composite
def twisted(draw: DrawFn, routing: str | None = None) -> Topology:
    """Twisted tori of two and three axes, in any order of axes."""
    k = draw(st.sampled_from([2, 3, 4]))
    shape = draw(st.sampled_from([(1, 2), (2, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (2, 1, 2)]))
    if k == 4 and sum(shape) > 4:
        k = 3
    level = {"kind": "torus", "shape": [k * n for n in shape], "twist": True, "latency": 1e-6}
    routing = routing or draw(st.sampled_from(["spread", "dimension-order"]))
    return build({"ici": level}, 1, routing=routing)


@composite
def dragonflies(draw: DrawFn, rule: str | None = None) -> Topology:
    """Small dragonflies, full or with a last group half empty."""
    p, a, h = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    groups = draw(st.integers(1, min(a * h + 1, 6)))
    level = {
        "kind": "dragonfly", "hosts": p, "routers": a, "globals": h, "latency": 1e-6,
        "local_latency": 2e-6, "global_latency": 5e-6, "global_bandwidth": 2e9,
    }  # fmt: skip
    ranks = max(1, p * a * groups - draw(st.integers(0, p * a - 1)))
    rule = rule or draw(st.sampled_from(["spread", "minimal-adaptive", "ecmp"]))
    return build({"fly": level}, ranks, routing=rule)


@composite
def nested(draw: DrawFn) -> Topology:
    """Two fabrics, one inside the other."""
    size = draw(st.sampled_from([2, 4]))
    inner = draw(
        st.sampled_from(
            [
                {"kind": "switch", "size": size},
                {"kind": "full_mesh", "size": size},
                {"kind": "torus", "shape": [size]},
                {"kind": "hypercube", "size": size},
                {"kind": "dragonfly", "hosts": 1, "routers": 2, "globals": 1, "groups": size // 2},
            ]
        )
    )
    outer = draw(
        st.sampled_from(
            [
                [{"kind": "switch"}],
                [{"kind": "full_mesh"}],
                [{"kind": "torus", "axes": 1}],
                [{"kind": "tier", "radix": 4}, {"kind": "tier", "radix": 32}],
                [{"kind": "dragonfly", "hosts": 2, "routers": 2, "globals": 4}],
            ]
        )
    )
    joins = draw(st.sampled_from(["accelerators", "rails"]))
    outer = [level | {"joins": joins, "latency": 3e-6} for level in outer]
    if inner["kind"] == "switch" and outer[0]["kind"] == "tier":
        outer[0]["joins"] = "rails"  # with the node's switch, tiers for all accelerators are one Clos network
    levels = {"inner": inner | {"latency": 1e-6}} | {f"outer{i}": level for i, level in enumerate(outer)}
    return build(levels, size * draw(st.integers(2, 4)))
