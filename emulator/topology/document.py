"""Reading the YAML files of this package, and telling what is wrong with them in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from emulator.errors import InputError

SUFFIXES = (".yaml", ".json")  # of topology files
# The compiled loader, where there is one, is ten times faster.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, source: str) -> dict[str, Any]:
    """The mapping in a YAML file; ``source`` is what the user called it. Raises InputError."""
    try:
        loader = _LOADER(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        _refuse_doubles(root)
        document = None if root is None else loader.construct_document(root)
    except OSError as error:
        raise InputError(error.strerror or str(error), source=source) from None
    except (UnicodeDecodeError, yaml.reader.ReaderError):
        raise InputError("is not text", source=source) from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(error.problem or "is not YAML", source=source, place=line) from None
    if not isinstance(document, dict):
        raise InputError("is empty" if document is None else "is not a mapping of keys to values", source=source)
    return document


def _refuse_doubles(root: yaml.Node | None) -> None:
    """Raise MarkedYAMLError at a key that a mapping has twice: the library would take the last."""
    waiting, met = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in met or not isinstance(node, yaml.CollectionNode):
            continue
        met.add(id(node))  # an alias is the node that it names
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
            continue
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                keys.add(key.value)
            waiting.append(value)


def refusal(error: Exception, *, source: str, place: str = "", known: str = "") -> InputError:
    """What msgspec found wrong, as one line of ours; ``known`` lists the keys for the case of an unknown one."""
    reason, _, where = str(error).partition(" - at `$")
    where = where.rstrip("`").replace("[...]", "")
    unknown, flag = "contains unknown field" in reason, reason.startswith("Expected `bool`")
    reason = reason.replace("Object contains unknown field", "unknown key").replace("Object missing", "missing")
    return InputError(
        reason,
        source=source,
        place=(place + where).lstrip("."),
        remedy=f"known keys: {known}" if unknown and known else "write yes or no" if flag else "",
    )


def convert(value: Any, kind: type[Any], *, source: str, place: str = "", dec_hook: Any = None) -> Any:
    """``value`` as a msgspec struct; text is taken for numbers and flags too, as ``--set`` gives it.

    Raises InputError naming the place.
    """
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        known = ", ".join(getattr(kind, "__struct_fields__", ()))
        raise refusal(error, source=source, place=place, known=known) from None
