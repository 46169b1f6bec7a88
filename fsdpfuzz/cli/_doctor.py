"""``fsdpfuzz doctor``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from fsdpfuzz.case import MAX_RANKS
from fsdpfuzz.cli._options import PythonPath, chosen, interpreter, known_file, whole
from fsdpfuzz.cli._output import console

if TYPE_CHECKING:
    from fsdpfuzz.show import Check, Skipped

STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}
WIDTH = 28


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="doctor")(doctor_command)


def doctor_command(
    backend: Annotated[str, typer.Option(metavar="B", help="auto, gloo or nccl.")] = "auto",
    world_size: Annotated[
        int | None,
        typer.Option(
            parser=whole("--world-size", 1, MAX_RANKS),
            metavar="N",
            help="Ranks to start; default 2.",
        ),
    ] = None,
    python: PythonPath = None,
) -> None:
    """Say what this machine can run, what is left out, and why.

    Exit code 0 if `fsdpfuzz run` can work, 3 if it cannot.
    """
    from fsdpfuzz.known import Known
    from fsdpfuzz.show import as_diagnosis, diagnose

    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    chosen_python = interpreter(python)
    path = known_file(None)
    known = Known.load(path) if path is not None else None
    # Printed as they come: starting the ranks is among them, and takes seconds.
    diagnosis = as_diagnosis(list(_shown(diagnose(backend, world_size or 2, known, chosen_python))))
    if diagnosis.missing:
        print(f"fsdpfuzz: cannot run here: {'; '.join(diagnosis.missing)}", file=sys.stderr)
        raise typer.Exit(3)
    print("fsdpfuzz run can work here.")


def _shown(found: Iterable[Check | Skipped]) -> Iterable[Check | Skipped]:
    """Passes everything on after it was printed, one line each."""
    from rich.text import Text

    from fsdpfuzz.show import Check

    out = console()
    for item in found:
        if isinstance(item, Check):
            state = (f"{item.state:<8}", STYLES[item.state])
            line = Text.assemble(state, f"{item.name:<{WIDTH}}  ", item.detail)
        else:
            line = Text.assemble((f"{'skipped':<8}", "dim"), f"{item.what}: {item.why}")
        out.print(line, soft_wrap=True)
        yield item
