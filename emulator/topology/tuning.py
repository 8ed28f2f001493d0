"""How the collective library of a GPU fabric behaves: which generation's constants of NCCL, and what was measured.

The constants themselves are in ``network/nccl.py``; a topology file names the generation and, for a machine that has
been measured, overrides single figures or gives a table of measured times.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from emulator.topology.document import convert
from emulator.topology.spec import Latency, decode_quantity

Protocols = Annotated[list[Latency], msgspec.Meta(min_length=3, max_length=3)]  # LL, LL128, Simple
Rates = Annotated[list[Annotated[float, msgspec.Meta(ge=0, le=1e6)]], msgspec.Meta(min_length=3, max_length=3)]


class Measured(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Times of one collective among ``ranks`` GPUs: ``bytes`` (S) and ``seconds``, equally long, bytes rising."""

    collective: str
    ranks: Annotated[int, msgspec.Meta(ge=2)]
    bytes: Annotated[list[Annotated[float, msgspec.Meta(gt=0, le=2**53)]], msgspec.Meta(min_length=1)]
    seconds: Annotated[list[Latency], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        if len(self.bytes) != len(self.seconds) or sorted(set(self.bytes)) != self.bytes:
            raise ValueError("bytes must rise, with one time each")
        if min(self.seconds) <= 0:
            raise ValueError("times must be above zero")


class Tuning(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``base``, ``intra``, ``inter``: seconds by algorithm (``ring``, ``tree``, ``nvls``, ``nvls_tree``, ``sharp``) for
    LL, LL128 and Simple; ``rate``: which part of what the links give each protocol moves (0: not used). All are NCCL's
    own where not given. ``nvls_from``: GPUs from which the switch is asked to reduce. ``p2p``: seconds that sends,
    all-to-alls, gathers and scatters take on top of the path. ``measured``: tables that go before the model.
    """

    generation: Literal["volta", "ampere", "hopper", "blackwell"]
    base: dict[str, Protocols] = {}
    intra: dict[str, Protocols] = {}
    inter: dict[str, Protocols] = {}
    rate: dict[str, Rates] = {}
    nvls_from: int | None = None
    p2p: Latency = Latency(0.0)
    measured: list[Measured] = []


def read_tuning(value: str | dict[str, Any] | None, source: str) -> Tuning | None:
    """The tuning of a topology file: a generation's name, a mapping, or none. Raises InputError."""
    if value is None or value == "none":
        return None
    document = {"generation": value} if isinstance(value, str) else value
    tuning: Tuning = convert(document, Tuning, source=source, place="tuning", dec_hook=decode_quantity)
    return tuning
