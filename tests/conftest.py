"""Settings of all tests, and the command as a user types it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings

from emulator.cli import main

# Examples are judged by their answers; how long one takes depends on what else the machine does.
settings.register_profile("emu", deadline=None)
settings.load_profile("emu")


@pytest.fixture
def emu(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty folder; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["emu", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return run
