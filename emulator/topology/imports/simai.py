"""SimAI's topology files: a header, the numbers of the switches, then one line per cable.

Header: ``nodes gpus_per_server nvswitches other_switches links gpu_type``. GPUs are numbered first. A cable is
``src dst bandwidth latency error_rate``; the error rate is left out. GPUs of one server talk over its NVSwitch.
"""

from __future__ import annotations

from emulator.errors import InputError
from emulator.topology.devices import load_device
from emulator.topology.explicit import Attributes, Link, Node, NodeLink
from emulator.topology.spec import Latency, Rate, decode_quantity


def read(text: str, name: str) -> NodeLink:
    """The node-link document of such a file. Raises InputError naming the line."""
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    numbers = [_whole(word, "line 1") for word in lines[0][1][:5]]
    total, per_server, nv, other, cables = numbers
    gpus = total - nv - other
    if min(numbers) < 0 or gpus < 1 or per_server < 1:
        raise InputError(f"{total} nodes, {nv} + {other} of them switches: no GPU is left", place="line 1")
    if len(lines) < 2:
        raise InputError("the line with the numbers of the switches is missing", place="line 2")
    if total > len(lines) - 1:  # before lists as long are made
        raise InputError(f"{len(lines) - 2} links cannot join {total} nodes", place="line 1")
    switches = [_whole(word, f"line {lines[1][0]}") for word in lines[1][1]]
    if sorted(switches) != list(range(gpus, total)):
        raise InputError(f"the switches should be the {nv + other} nodes from {gpus} on", place=f"line {lines[1][0]}")
    if len(lines) - 2 != cables:
        raise InputError(f"the header says {cables} links, {len(lines) - 2} follow", place="line 1")
    nodes = [Node(i, "accel", domain=i // per_server) for i in range(gpus)]
    nodes += [Node(i, "switch") for i in range(gpus, total)]
    links = [_link(words, f"line {number}", gpus, gpus + nv) for number, words in lines[2:]]
    return NodeLink(nodes, links, multigraph=True, graph=Attributes(name=name, device=_device(lines[0][1][5])))


def _link(words: list[str], place: str, first_nv: int, first_other: int) -> Link:
    if len(words) != 5:
        raise InputError(f"{len(words)} fields; a link is: src dst bandwidth latency error_rate", place=place)
    a, b = (_whole(word, place) for word in words[:2])
    try:
        bandwidth, latency = decode_quantity(Rate, words[2]), decode_quantity(Latency, words[3])
    except ValueError as error:
        raise InputError(str(error), place=place) from None
    top = max(a, b)
    level = "NVLink" if top < first_other and top >= first_nv else "NIC" if min(a, b) < first_nv else "switch"
    return Link(a, b, bandwidth=bandwidth, latency=latency, level=level)


def _whole(word: str, place: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise InputError(f"{word!r} is not a whole number", place=place) from None


def _device(gpu: str) -> str | None:
    """The device that the file names, if we know one of that name."""
    try:
        return load_device(gpu).name
    except InputError:
        return None
