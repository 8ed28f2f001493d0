"""Files appear whole or not at all, and every failure is one line that names the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emulator import files
from emulator.errors import InputError


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.txt", "5 µs\n")
    assert files.read_text(tmp_path / "a.txt") == "5 µs\n"
    assert files.read_bytes(tmp_path / "a.txt") == "5 µs\n".encode()
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    files.write_bytes(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError) as caught:
        files.write_together({tmp_path / "a": b"new", tmp_path / "b": b"new"})
    assert "No space left on device" in str(caught.value)
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_of_two_files_none_is_written_if_one_cannot(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        files.write_together({tmp_path / "good": b"1", tmp_path / "missing" / "bad": b"2"})
    assert caught.value.source == str(tmp_path / "missing" / "bad")
    assert os.listdir(tmp_path) == []


def test_a_link_keeps_its_target_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    files.write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    files.write_bytes("/dev/null", b"gone")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(("target", "reason"), [
    ("folder", "is a folder, not a file"),
    ("missing/file", "does not exist"),
    ("file/below", "is not a folder"),
    ("nul\0character", "null"),
])  # fmt: skip
def test_bad_targets(tmp_path: Path, target: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        files.write_bytes(tmp_path / target, b"x")
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize(("name", "reason"), [
    ("missing", "no such file"),
    ("folder", "is a folder"),
    ("binary", "binary"),
    ("binary/below", "Not a directory"),
])  # fmt: skip
def test_bad_sources(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\x80\x81\x00")
    with pytest.raises(InputError) as caught:
        files.read_text(tmp_path / name)
    assert reason in str(caught.value)
    assert caught.value.source == str(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="no permission"):
            files.write_bytes(tmp_path / "a", b"x")
    finally:
        tmp_path.chmod(0o700)
