"""Topology files by their content: our own, and those of ASTRA-sim, NCCL and SimAI."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from emulator.errors import InputError
from emulator.files import read_bytes, read_text
from emulator.topology import explicit
from emulator.topology.explicit import GraphRouting
from emulator.topology.graph import Topology
from emulator.topology.imports import nccl, simai
from emulator.topology.imports.astra import levels_of_astra_sim
from emulator.unpack import is_utf16, without_mark

__all__ = ["GRAPHS", "GraphRouting", "levels_of_astra_sim", "read_graph", "sniff"]

GRAPHS = ("graph", "nccl", "simai")
_SIMAI_HEADER = re.compile(r"\s*(\d+\s+){4}\d+\s+\S+\s*$")


def sniff(path: Path, source: str) -> str:
    """What a file is: ``levels``, ``astra-sim``, or one of GRAPHS. Raises InputError if it cannot be read."""
    try:
        data = read_bytes(path)
        if _is_xml(data):
            return "nccl"
        text = without_mark(data, source).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("is not text", source=source) from None
    except InputError as error:
        raise InputError(error.reason, source=source, remedy=error.remedy) from None
    start = text.lstrip()
    if path.suffix == ".json" or start.startswith("{"):
        return "graph"
    first = start.partition("\n")[0]
    if _SIMAI_HEADER.match(first):
        return "simai"
    return "astra-sim" if re.search(r"^npus_count\s*:", text, re.MULTILINE) else "levels"


def _is_xml(data: bytes) -> bool:
    """Does it begin with a tag? In UTF-16 too, and whatever else the first line of an XML document may name."""
    begin = data.removeprefix(codecs.BOM_UTF8)
    if is_utf16(begin):
        begin = begin.translate(None, codecs.BOM_UTF16_LE + b"\0")  # of ASCII characters only these are left
    return begin.lstrip().startswith(b"<")


def read_graph(kind: str, path: Path, source: str, routing: GraphRouting) -> Topology:
    """The topology of a file of one of GRAPHS. Raises InputError naming file, place and reason."""
    try:
        if kind == "graph":
            return explicit.read(path, routing)
        document = nccl.read(read_bytes(path), path.stem) if kind == "nccl" else simai.read(read_text(path), path.stem)
        return explicit.from_node_link(document, path.stem, routing)
    except InputError as error:
        raise InputError(error.reason, source=source, place=error.place, remedy=error.remedy) from None
