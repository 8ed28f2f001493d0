"""The command line: one module per command; each parses, calls and prints."""

from emulator.cli.app import main as main
