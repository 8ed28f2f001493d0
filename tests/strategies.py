"""Every way to train the tiny models that the recorder is tested with, and what each has to communicate.

The formulas give, for the whole job (all ranks of one step), how often which collective runs in which group on how many
bytes: the whole buffer (all-reduce input, all-gather output, reduce-scatter and all-to-all input), or what is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Multiset = Counter[tuple[str, str, int]]

# The tiny models: width, layers, key/value width, feed-forward, experts' feed-forward, vocabulary, tokens; float64.
D, L, KV, F, EF, V, T, SIZE = 32, 4, 16, 96, 64, 128, 32, 8
ATTENTION = 2 * D * D + 2 * D * KV
LAYER = ATTENTION + 3 * D * F + 2 * D  # parameters of one layer: attention, feed-forward, two norms
ENDS = 2 * V * D + D  # embedding, head, last norm
PARAMETERS = L * LAYER + ENDS
TENSORS = 9 * L + 3
ACTIVATION = T * D * SIZE  # of one sequence


@dataclass(frozen=True)
class Strategy:
    """A way to train. ``exact``: it computes in float64 what one process would, to rounding. ``fake``: a fake world can
    record it. ``sized``: the formula knows the bytes of all-to-alls (with learned routing they follow from data)."""

    name: str
    ranks: int
    arguments: str
    formula: Callable[[], Multiset]
    workload: str = "llama.py"
    exact: bool = True
    fake: bool = True
    sized: bool = True


def repeated(ranks: int, counts: dict[tuple[str, str, int], int]) -> Multiset:
    """The same on every rank."""
    return Counter({key: ranks * count for key, count in counts.items()})


def fsdp(
    ranks: int,
    group: str = "fsdp",
    *,
    gathers: int = 2,
    micro: int = 1,
    part: int = 1,
    gather: int = SIZE,
    reduce: int = SIZE,
) -> Multiset:
    """PyTorch FSDP (Zhao 2023, section 3): each layer is gathered for the forward and again for the backward (not the
    root, which stays), and its gradients are reduce-scattered once. ``part``: ranks of TP that share the matmuls."""
    layer, ends = (LAYER - 2 * D) // part + 2 * D, (ENDS - D) // part + D  # norms are whole
    return repeated(
        ranks,
        {
            ("all_gather", group, layer * gather): gathers * L * micro,
            ("all_gather", group, ends * gather): micro if gathers == 2 else 1,
            ("reduce_scatter", group, layer * reduce): L,
            ("reduce_scatter", group, ends * reduce): 1,
        },
    )


def hybrid() -> Multiset:
    """Hybrid sharding: what FSDP reduces inside a replica is all-reduced between replicas, as shards."""
    between = {("all_reduce", "dp", LAYER * SIZE // 2): L, ("all_reduce", "dp", ENDS * SIZE // 2): 1}
    return fsdp(4) + repeated(4, between)


def replicas(ranks: int) -> Multiset:
    """DDP: all gradients are all-reduced; those of the tiny model fit into one bucket."""
    return repeated(ranks, {("all_reduce", "dp", PARAMETERS * SIZE): 1})


def zero_1(ranks: int) -> Multiset:
    """torch's ZeroRedundancyOptimizer: DDP's all-reduce, then every parameter is broadcast by the rank that has its
    optimizer state. 1.5 times the traffic of DDP; ZeRO (Rajbhandari 2019, section 7) counts a reduce-scatter and an
    all-gather, as much as DDP."""
    sizes = [V * D, V * D, *[D] * (2 * L + 1), *[D * D] * (2 * L), *[KV * D] * (2 * L), *[F * D] * (3 * L)]
    assert (len(sizes), sum(sizes)) == (TENSORS, PARAMETERS)
    return replicas(ranks) + Counter(("broadcast", "dp", size * SIZE) for size in sizes for _ in range(ranks))


def tensor(ranks: int, *, stages: tuple[int, int] = (L, 1), micro: int = 1) -> Multiset:
    """Megatron-LM's operators (Shoeybi 2019, section 3): two all-reduces forward and two backward per layer; the
    embedding's sum, and the sum of the head's input gradient; the logits are gathered."""
    layers, ends = stages
    return repeated(
        ranks,
        {
            ("all_reduce", "tp", ACTIVATION): micro * (4 * layers + 2 * ends),
            ("all_gather", "tp", T * V * SIZE): micro * ends,
        },
    )


def sequence(ranks: int, micro: int = 1) -> Multiset:
    """Sequence parallelism (Korthikanti 2022, section 4.2.2): an all-gather and a reduce-scatter in place of each
    all-reduce, and as torch has no fused norm gradient, the all-reduce of every norm weight's gradient. The loss on
    sharded logits takes maximum, sum and the target's logit (three numbers a token)."""
    assert T == D  # so that a number per token and a norm's gradient have the same size
    small = {("all_reduce", "tp", T * SIZE): micro * (2 * L + 1 + 3)}
    both = {(kind, "tp", ACTIVATION): micro * (4 * L + 2) for kind in ("all_gather", "reduce_scatter")}
    return repeated(ranks, both | small)


def pipeline(crossings: int, micro: int) -> Multiset:
    """One activation forward and one gradient backward per microbatch and boundary between ranks."""
    return Counter({(kind, "pp", ACTIVATION): 2 * micro * crossings for kind in ("send", "recv")})


def ring(ranks: int, n: int) -> Multiset:
    """Ring attention (Liu 2023): keys and values make n-1 steps forward; backward they make n-1 again, and their
    gradients n, home. Parameters are sharded over the ring as well."""
    part = KV * T * SIZE // n  # keys, or values, of one rank
    counts = {(kind, "cp", part): L * (2 * (n - 1) + 2 * (n - 1) + 2 * n) for kind in ("send", "recv")}
    return fsdp(ranks, "cp") + repeated(ranks, counts)


def experts(ranks: int, group: str, *, own_shards: int = 1, tokens: int = T) -> Multiset:
    """Expert parallelism: per layer two all-to-alls of the tokens forward and two backward, two experts each, and one
    of the counts (an int64 for each of 8 experts). Dense parameters are sharded over all ranks, experts over those that
    have the same ones."""
    dense = LAYER - 3 * D * F + 8 * D  # the router in place of the feed-forward
    mine = 3 * 8 * D * EF // 2
    counts = {
        ("all_to_all", "ep", 2 * tokens * D * SIZE): 4 * L,
        ("all_to_all", "ep", 8 * 8): L,
        ("all_gather", group, dense * SIZE): 2 * L,
        ("all_gather", group, ENDS * SIZE): 1,
        ("reduce_scatter", group, dense * SIZE): L,
        ("reduce_scatter", group, ENDS * SIZE): 1,
    }
    if own_shards > 1:
        counts |= {("all_gather", "fsdp", mine * SIZE): 2 * L, ("reduce_scatter", "fsdp", mine * SIZE): L}
    return repeated(ranks, counts)


@dataclass(frozen=True)
class Grid:
    """PP 2 x FSDP 2 x TP 2, with CP 2, or EP 2 and experts in place of the feed-forward; four microbatches, 1F1B."""

    cp: int = 1
    ep: int = 1

    MICRO = 4
    LAYERS = L // 2  # of a stage

    def formula(self) -> Multiset:
        """What all ranks do: each of a stage does the same."""
        ranks = 2 * 2 * self.cp * self.ep
        last = Counter({("all_reduce", "tp", D * SIZE): 1}) + self.loss()  # its norm's gradient
        return repeated(ranks, self.stage(V * D // 2) + self.stage(V * D // 2 + D) + last)

    def stage(self, ends: int) -> Multiset:
        """One rank of a stage that has ``ends`` parameters beside its layers (embedding, or norm and head).

        Under a pipeline FSDP gathers once a step and reduces once, when the last microbatch has passed; so are the
        partial gradients of norms (and routers), which sequence parallelism sums over TP. Each of the two ends takes
        one all-gather and one reduce-scatter of a microbatch, of its forward and backward.
        """
        activation = ACTIVATION // self.cp
        block = 2 * D + (8 * D if self.ep > 1 else 0)  # norms, router
        layer = block + (ATTENTION if self.ep > 1 else LAYER - 2 * D) // 2
        shards = "fsdp" + (".cp" if self.cp > 1 else ".ep" if self.ep > 1 else "")
        operators = 2 if self.ep > 1 else 4  # of a layer: experts exchange tokens instead
        found: Multiset = Counter()
        for kind in ("all_gather", "reduce_scatter"):
            found[kind, shards, layer * SIZE] += self.LAYERS
            found[kind, shards, ends * SIZE] += 1
            found[kind, "tp", activation] += self.MICRO * (operators * self.LAYERS + 1)
        found["all_reduce", "tp", D * SIZE] += 2 * self.LAYERS
        for kind in ("send", "recv"):
            found[kind, "pp", activation // 2] += self.MICRO
        return found + self.ring() + self.experts()

    def loss(self) -> Multiset:
        """Maximum, sum and the target's logit, a number for each token."""
        return Counter({("all_reduce", "tp", T // self.cp * SIZE): 3 * self.MICRO})

    def ring(self) -> Multiset:
        """See :func:`ring`; each rank has its tensor-parallel part of the key and value heads."""
        if self.cp == 1:
            return Counter()
        n, part = self.cp, KV // 2 * (T // self.cp) * SIZE
        return Counter({(kind, "cp", part): self.MICRO * self.LAYERS * (6 * n - 4) for kind in ("send", "recv")})

    def experts(self) -> Multiset:
        """See :func:`experts`; they are spread over EP and TP, and each rank routes its part of the sequence."""
        if self.ep == 1:
            return Counter()
        mine = 3 * 8 * D * EF // (2 * self.ep) * SIZE
        return Counter(
            {
                ("all_to_all", "ep.tp", 2 * (T // 2) * D * SIZE): 4 * self.MICRO * self.LAYERS,
                ("all_to_all", "ep.tp", 8 * 8): self.MICRO * self.LAYERS,
                ("all_gather", "fsdp", mine): self.LAYERS,
                ("reduce_scatter", "fsdp", mine): self.LAYERS,
                ("all_reduce", "tp", 8 * D * SIZE): self.LAYERS,  # the router's gradient
            }
        )


# In more dimensions than two: 8 and 16 processes, so tests that run them are slow.
COMBINED = [
    Strategy("pp-fsdp-tp", 8, "--pp 2 --fsdp 2 --tp 2 --microbatches 4", Grid().formula),
    Strategy("pp-fsdp-cp-tp", 16, "--pp 2 --fsdp 2 --cp 2 --tp 2 --microbatches 4", Grid(cp=2).formula),
    Strategy(
        "pp-fsdp-ep-tp", 16, "--pp 2 --fsdp 2 --ep 2 --tp 2 --microbatches 4 --routing balanced", Grid(ep=2).formula,
        workload="moe.py", exact=False,
    ),
]  # fmt: skip

STRATEGIES = [
    Strategy("ddp", 2, "--dp 2", lambda: replicas(2)),
    Strategy("zero-1", 2, "--dp 2 --zero 1", lambda: zero_1(2)),
    Strategy("zero-2", 2, "--fsdp 2 --zero 2", lambda: fsdp(2, gathers=1)),
    Strategy("zero-2-fsdp1", 2, "--fsdp 2 --zero 2 --fsdp-version 1", lambda: fsdp(2, gathers=1)),
    Strategy("zero-3-fsdp1", 2, "--fsdp 2 --fsdp-version 1", lambda: fsdp(2)),
    Strategy("zero-3", 2, "--fsdp 2", lambda: fsdp(2)),
    Strategy("prefetch", 2, "--fsdp 2 --prefetch 1", lambda: fsdp(2)),
    Strategy("accumulation", 2, "--fsdp 2 --microbatches 2", lambda: fsdp(2, micro=2)),
    Strategy("ddp-accumulation", 2, "--dp 2 --microbatches 2", lambda: replicas(2)),
    Strategy("recompute-full", 2, "--fsdp 2 --recompute full", lambda: fsdp(2)),
    Strategy("recompute-selective", 2, "--fsdp 2 --recompute selective", lambda: fsdp(2)),
    Strategy(
        "mixed-precision", 2, "--fsdp 2 --dtype bfloat16 --master-dtype float32 --reduce-dtype float32",
        lambda: fsdp(2, gather=2, reduce=4), exact=False,
    ),
    Strategy("tp", 2, "--tp 2 --no-sp", lambda: tensor(2)),
    Strategy("tp-sp", 2, "--tp 2", lambda: sequence(2)),
    Strategy("gpipe", 2, "--pp 2 --schedule GPipe --microbatches 4", lambda: pipeline(1, 4)),
    Strategy("1f1b", 2, "--pp 2 --microbatches 4", lambda: pipeline(1, 4)),
    Strategy("interleaved-1f1b", 2, "--pp 2 --schedule Interleaved1F1B --microbatches 4", lambda: pipeline(3, 4)),
    Strategy("looped-bfs", 2, "--pp 2 --schedule LoopedBFS --microbatches 4", lambda: pipeline(3, 4)),
    Strategy("zero-bubble", 2, "--pp 2 --schedule InterleavedZeroBubble --microbatches 4", lambda: pipeline(3, 4)),
    Strategy("zbv", 2, "--pp 2 --schedule ZBVZeroBubble --microbatches 4", lambda: pipeline(2, 4)),
    Strategy("dualpipe-v", 2, "--pp 2 --schedule DualPipeV --microbatches 4", lambda: pipeline(2, 4)),
    Strategy("cp", 2, "--cp 2", lambda: ring(2, 2)),
    Strategy("ep", 2, "--ep 2", lambda: experts(2, "ep"), workload="moe.py", fake=False, sized=False),
    Strategy("ep-balanced", 2, "--ep 2 --routing balanced", lambda: experts(2, "ep"), workload="moe.py", exact=False),
    Strategy("hsdp", 4, "--dp 2 --fsdp 2", hybrid),
    Strategy("fsdp-tp", 4, "--fsdp 2 --tp 2", lambda: fsdp(4, part=2) + sequence(4)),
    Strategy("cp-4", 4, "--cp 4", lambda: ring(4, 4)),
    Strategy(
        "ep-fsdp", 4, "--ep 2 --fsdp 2", lambda: experts(4, "fsdp.ep", own_shards=2), workload="moe.py", fake=False,
        sized=False,
    ),
    Strategy(
        "ep-fsdp-skewed", 4, "--ep 2 --fsdp 2 --routing skewed", lambda: experts(4, "fsdp.ep", own_shards=2),
        workload="moe.py", exact=False, sized=False,
    ),
]  # fmt: skip
