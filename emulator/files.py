"""Reading and writing whole files, with every failure told as one line.

A file is written beside its target under a temporary name and renamed: it appears whole or not at all, and an earlier
file of that name stays as it was until then.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from emulator.errors import InputError


def read_bytes(path: Path | str) -> bytes:
    """The content of a file. Raises InputError if it is missing, a folder or not readable."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise InputError(_reason(error, "read"), source=str(path)) from None


def packed(path: Path | str, data: bytes) -> bytes:
    """The data as a file of that name holds it: gzipped if the name ends in ``.gz``, the same bytes every time."""
    return gzip.compress(data, mtime=0) if str(path).lower().endswith(".gz") else data


def read_text(path: Path | str) -> str:
    """The content of a UTF-8 text file, without a byte-order mark. Raises InputError also if it is binary."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start}): is it a binary file?", source=str(path)) from None


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write a file whole or not at all. Raises InputError if the folder is missing or refuses it."""
    write_together({path: data})


def write_text(path: Path | str, text: str) -> None:
    """Write a UTF-8 text file whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_together(contents: Mapping[Path | str, bytes]) -> None:
    """Write files that belong together: none takes its name before all are on the disk.

    Raises InputError naming the file that could not be written; nothing is left behind then.
    """
    ready: list[tuple[Path, Path]] = []
    path: Path | str = ""
    try:
        for path, data in contents.items():
            check_writable(path)
            target = Path(os.path.realpath(path))  # a link keeps pointing where it did
            if target.exists() and not target.is_file():
                target.write_bytes(data)  # /dev/null, a pipe: nothing to rename over
            else:
                ready.append((_write_beside(target, data), target))
        while ready:
            temporary, path = ready[0]
            os.replace(temporary, path)
            ready.pop(0)
    except (OSError, ValueError) as error:
        raise InputError(_reason(error, "write"), source=str(path)) from None
    finally:
        for temporary, _ in ready:
            temporary.unlink(missing_ok=True)


def check_writable(path: Path | str) -> None:
    """Raise InputError if a file could not be written to ``path``: to be asked before hours of work, not after."""
    folder = Path(path).parent
    if not str(path) or Path(path).is_dir():
        raise InputError("is a folder, not a file", source=str(path) or ".")
    if not folder.is_dir():
        remedy = "" if folder.exists() else f"create it first: mkdir -p {folder}"
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"cannot write: the folder {folder} {what}", source=str(path), remedy=remedy)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write: no permission in the folder {folder}", source=str(path))


def _write_beside(target: Path, data: bytes) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files private; a result is an ordinary file
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _umask() -> int:
    mask = os.umask(0)  # there is no way to read it without setting it
    os.umask(mask)
    return mask


def _reason(error: Exception, verb: str) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file"
    if isinstance(error, PermissionError):
        return f"cannot {verb}: no permission"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"cannot {verb}: {text}"
