"""``fsdpfuzz repro``."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsdpfuzz.cli._options import chosen, usable_folder, writable_parent
from fsdpfuzz.errors import MachineError, PoolError, UsageError, one_line
from fsdpfuzz.loop import OUTPUT

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Entry
    from fsdpfuzz.pool import Machine
    from fsdpfuzz.repro import Ablation, Context
    from fsdpfuzz.verdict import Finding

SCRIPT = "repro.py"


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="repro")(repro_command)


def repro_command(
    case: Annotated[Path, typer.Argument(metavar="CASE", help="A saved case.")],
    to: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the script here."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the script and say what came of it.")
    ] = False,
    issue: Annotated[
        bool, typer.Option("--issue", help="Print the finding as issue text, script included.")
    ] = False,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="Find out which options it needs; some 30 short runs."),
    ] = False,
    backend: Annotated[str, typer.Option(metavar="B", help="auto, gloo or nccl.")] = "auto",
    plant: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", hidden=True)] = None,
) -> None:
    """Write a saved case as a script that needs torch only, to be run with torchrun.

    The script shows the finding that is saved with the case, or without one whether FSDP
    trains as the plain model does.

    With --verify the exit code is 1 if the script shows it, 0 if it does not, and 3 if the
    script ends in another way. Without, it is 0.
    """
    from fsdpfuzz.corpus import read_entry
    from fsdpfuzz.repro import finding_of, issue_text, render

    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    entry = read_entry(case)
    finding = None
    if entry.found is not None:
        try:
            finding = finding_of(entry.found.key, entry.found.message)
        except UsageError as error:
            raise UsageError(one_line(f"{case}: $.found.key: {error}")) from None
    if finding is None and (issue or ablate):
        option = "--issue" if issue else "--ablate"
        raise UsageError(one_line(f"{option}: no finding is saved with the case in {case}"))
    if to is not None:
        writable_parent(to, "-o")
    ablation = None
    if ablate and finding is not None:
        ablation = _ablation(entry, finding, backend, plant)
    context = context_of(
        entry,
        script=to.name if to is not None else SCRIPT,
        ablation=ablation,
        machine=_machine() if issue or ablate or verify else None,
    )
    script = render(entry.case, finding, context)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the encoding cannot say is written as Python escapes it.
        sys.stdout.reconfigure(errors="backslashreplace")
    if to is not None:
        _write(to, script)
    if issue and finding is not None:
        print(issue_text(entry.case, finding, context, script), end="")
    elif to is None:
        print(script, end="")
    if verify:
        raise typer.Exit(_verified(entry, finding, script, backend, plant))


def context_of(
    entry: Entry,
    *,
    script: str,
    ablation: Ablation | None = None,
    machine: Machine | None = None,
) -> Context:
    """What is known of a saved case for the header of its script.

    ``machine`` is this one. Of that of the finding, the case keeps torch and backend.
    """
    from fsdpfuzz.loop import installed_torch
    from fsdpfuzz.repro import Context, environment_of

    found = entry.found
    here = environment_of(machine) if machine is not None else ()
    if found is None:
        return Context(torch=installed_torch(), environment=here, script=script)
    return Context(
        torch=found.torch,
        backend=found.backend,
        environment=(f"found on {found.date}",),
        here=(f"torch {machine.torch}", *here) if machine is not None else (),
        ablation=ablation,
        rate=found.rate.removeprefix("failed "),
        script=script,
    )


def _machine() -> Machine | None:
    """This machine; None if it has no torch, without which a script can be written, too."""
    from fsdpfuzz.pool import probe_machine

    try:
        return probe_machine()
    except (MachineError, PoolError):
        return None


def _ablation(entry: Entry, finding: Finding, backend: str, plant: str | None) -> Ablation:
    from fsdpfuzz.cli._options import MAX_RANKS
    from fsdpfuzz.loop import Session, SessionSettings, resolve_machine
    from fsdpfuzz.pool import probe_machine
    from fsdpfuzz.repro import ablate

    usable_folder(OUTPUT, "the output folder")
    machine = resolve_machine(backend, (entry.case.world_size,))
    most = MAX_RANKS if machine.backend == "gloo" else probe_machine().gpus
    settings = SessionSettings(backend=machine.backend, plant=plant, torch=machine.torch, reruns=0)
    with Session(settings) as session:
        return ablate(
            entry.case,
            finding.key,
            lambda case: session.examine(case).verdict,
            max_ranks=min(4, most),
        )


def _verified(
    entry: Entry, finding: Finding | None, script: str, backend: str, plant: str | None
) -> int:
    """Runs the script; 1 if it reproduces, 0 if not. :class:`MachineError` if it cannot tell."""
    from fsdpfuzz.loop import FLAKY_ATTEMPTS, plant_launcher, resolve_machine
    from fsdpfuzz.repro import verify

    machine = resolve_machine(backend, (entry.case.world_size,))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SCRIPT
        _write(path, script)
        seen = verify(
            path,
            entry.case.world_size,
            machine.backend,
            finding,
            launcher=plant_launcher(plant),
            attempts=FLAKY_ATTEMPTS if entry.found is not None and entry.found.rate else 1,
        )
    if seen.outcome not in ("reproduced", "not reproduced"):
        raise MachineError(one_line(f"the script {seen.outcome}: {seen.reason}"))
    detail = f": {seen.reason}" if seen.reason else ""
    print(one_line(f"{seen.outcome} in {seen.seconds:.0f} s{detail}"), file=sys.stderr)
    return 1 if seen.reproduced else 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(one_line(f"{path}: cannot be written: {error.strerror}")) from None
