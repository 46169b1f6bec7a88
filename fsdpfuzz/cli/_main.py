"""Entry point: builds the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from types import FrameType
from typing import Annotated, Any

import typer

from fsdpfuzz.cli._group import Group
from fsdpfuzz.errors import MachineError, PoolError, UsageError
from fsdpfuzz.loop import Stopped

COMMANDS = (
    "fsdpfuzz.cli._run",
    "fsdpfuzz.cli._check",
    "fsdpfuzz.cli._replay",
    "fsdpfuzz.cli._repro",
    "fsdpfuzz.cli._minimize",
    "fsdpfuzz.cli._explain",
    "fsdpfuzz.cli._write",
    "fsdpfuzz.cli._corpus",
    "fsdpfuzz.cli._doctor",
    "fsdpfuzz.cli._version",
)
"""One module per command; each has ``add(app)``, which registers it."""

USAGE = 2
MACHINE = 3


def build() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        name="fsdpfuzz",
        cls=Group,
        help="Property-based fuzzing of PyTorch FSDP on real ranks.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool,
            typer.Option("--version", is_eager=True, callback=_version, help="Print the versions."),
        ] = False,
    ) -> None:
        """Property-based fuzzing of PyTorch FSDP on real ranks."""

    for name in COMMANDS:
        importlib.import_module(name).add(app)
    return app


# Whoever calls `main` again and again, as tests do, would have most of the time go into it.
@cache
def _command() -> Any:
    return typer.main.get_command(build())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. Arguments default to those of the process."""
    from fsdpfuzz.show import spell_out

    # First of all: an error about an option may hold what the terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        spell_out(stream)
    command = _command()
    # A signal that is ignored, as SIGHUP under nohup, stays ignored.
    previous = {
        number: signal.signal(number, _stop)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        code = command.main(
            args=None if arguments is None else list(arguments),
            prog_name="fsdpfuzz",
            standalone_mode=False,
        )
    except UsageError as error:
        return _fail(str(error), USAGE)
    except (MachineError, PoolError) as error:
        return _fail(str(error), MACHINE)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _interrupted(error)
    except Exception as error:
        # The base class of option errors moved between the releases of typer that we accept.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            # Its message is the help of a command that was given nothing at all.
            return _help(error.format_message())
        return _fail(error.format_message(), USAGE)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if isinstance(code, int) else 0


def _version(wanted: bool) -> None:
    if wanted:
        from fsdpfuzz.cli._version import version

        version()
        raise typer.Exit


def _stop(number: int, _frame: FrameType | None) -> None:
    raise Stopped(number)


def _interrupted(error: BaseException) -> int:
    cause = error if isinstance(error, KeyboardInterrupt) else error.__cause__
    number = cause.number if isinstance(cause, Stopped) else int(signal.SIGINT)
    return _fail(f"ended by {signal.Signals(number).name}", 128 + number)


def _help(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever read it has gone, as `head` does; Python would write what is left as it exits.
        # Elsewhere typer sees to it, and returns 1.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return USAGE


def _fail(message: str, code: int) -> int:
    print(f"fsdpfuzz: {' '.join(message.split())}", file=sys.stderr)
    return code
