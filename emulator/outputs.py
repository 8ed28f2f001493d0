"""The files that a command is told to write, checked before any work: where they go, and what their names promise.

No output replaces what it is made from, nor another output; a name's ending says what is in the file or is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from emulator.errors import InputError
from emulator.files import check_writable

JSON = (".json", ".json.gz")


@dataclass(frozen=True)
class Output:
    """A file to write: the option that names it and its path (None: not asked for).

    ``endings``: what the name may end in. A name without any ending promises nothing and is taken, unless ``told``: the
    ending chooses the format. ``printed``: ``-`` means standard output.
    """

    option: str
    path: str | Path | None
    endings: tuple[str, ...]
    told: bool = False
    printed: bool = False


def check_outputs(outputs: Sequence[Output], inputs: Mapping[str, str | Path | None]) -> None:
    """Raise InputError if an output cannot be written, has a wrong ending, or would replace an input or another output.

    ``inputs``: what is read, each with what to call it; None is left out, and so is a name that is no file.
    """
    asked = [one for one in outputs if one.path is not None and not (one.printed and str(one.path) == "-")]
    for one in asked:
        for what, path in inputs.items():
            if path is not None and _same(str(one.path), str(path)):
                raise InputError(
                    f"would overwrite {what} it is made from", source=str(one.path), place=one.option,
                    remedy="give it another name",
                )  # fmt: skip
    for one, other in combinations(asked, 2):
        if _same(str(one.path), str(other.path)):
            raise InputError(f"{one.option} and {other.option} are the same file", source=str(other.path))
    for one in asked:
        _check_ending(one)
        check_writable(str(one.path))


def _same(a: str, b: str) -> bool:
    """Do two paths lead to the same file, whether it exists or not? A device or a pipe takes any number of outputs."""
    try:
        if os.path.exists(a) and os.path.exists(b):
            return os.path.samefile(a, b) and os.path.isfile(a)
        return os.path.realpath(a) == os.path.realpath(b)
    except (OSError, ValueError):  # ValueError: a NUL character in the name
        return False


def _check_ending(one: Output) -> None:
    path = Path(str(one.path))
    if path.name.lower().endswith(one.endings):
        return
    if path.name == "-":
        raise InputError("cannot be printed: give the name of a file", source=one.option)
    if path.suffix or one.told:
        if path.exists() and not path.is_file():  # a folder is told by check_writable; a device has no format
            return
        *most, last = one.endings
        known = f"{', '.join(most)} or {last}" if most else last
        raise InputError(f"the name has to end in {known}", source=str(one.path), place=one.option)
