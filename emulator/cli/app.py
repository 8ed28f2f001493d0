"""The ``emu`` command: its subcommands, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from emulator import __version__
from emulator.cli import collective, compare, export, record, report, run, topo, trace, verify, view
from emulator.errors import EmuError

# What typer raises for a wrong command line; its base is the same class whichever click typer brings along.
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])

_INTERRUPTED = 130


class _Commands(TyperGroup):
    """The subcommands. That the reader has gone is said without an errno, on which typer would leave with 1."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise BrokenPipeError from None


app = typer.Typer(
    name="emu",
    cls=_Commands,
    help="What would my torch training job do on a cluster I do not have?\n\n"
    "Record a job on a CPU (`emu record`), replay it on a fabric (`emu run`), look at it (`emu view`).\n\n"
    "First try:  emu run --topo fattree --trace llama.json",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("run")(run.run)
# What follows SCRIPT belongs to it, --help included.
app.command(
    "record",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)(record.record)
app.command("view")(view.view)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("export")(export.export)
app.command("collective")(collective.collective)
# What a workload behind `verify` takes is not known here.
app.command("verify", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(verify.verify)
app.add_typer(topo.app, name="topo")
app.add_typer(trace.app, name="trace")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"emu {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and leave with its exit code: 0 done, 1 the answer is no, 2 wrong input."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name that the terminal's encoding lacks is no reason to fail
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:  # typer answers Ctrl-C with this code and no word
            raise KeyboardInterrupt
        sys.stdout.flush()
    except EmuError as error:
        _say(str(error), error.remedy)
        code = error.exit_code
    except _UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if message.startswith("Usage:"):  # no command given: the help
            print(message)
            sys.exit(0)
        _say(message, f"`{_command_of(sys.argv[1:])} --help` shows what it takes")
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted; nothing was written", "")
        code = _INTERRUPTED
    except BrokenPipeError:  # the reader (`| head`) has gone: nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # a full disk behind standard output
        _say(f"cannot write the output: {error.strerror or error}", "")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _command_of(words: list[str]) -> str:
    """The command that a command line names (an option without its value comes without typer's own word for it)."""
    command, path = typer.main.get_command(app), ["emu"]
    for word in words:
        if not isinstance(command, TyperGroup) or word not in command.commands:
            break
        command = command.commands[word]
        path.append(word)
    return " ".join(path)


def _say(reason: str, remedy: str) -> None:
    print("emu: " + " ".join(reason.split()), file=sys.stderr)
    if remedy:
        print("     " + remedy, file=sys.stderr)
