"""``fsdpfuzz repro``."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from fsdpfuzz.cli._finding import finding_of, read_with_finding
from fsdpfuzz.cli._options import (
    CasePath,
    InjectionName,
    KnownPath,
    OwnTarget,
    PythonPath,
    chosen,
    interpreter,
    known_file,
    path_from,
    permitted,
    writable_parent,
)
from fsdpfuzz.errors import CaseError, ContractError, MachineError, PoolError, UsageError, one_line

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Entry
    from fsdpfuzz.known import Defect
    from fsdpfuzz.pool import Interpreter, Machine
    from fsdpfuzz.reduce import Ablation
    from fsdpfuzz.repro import Context
    from fsdpfuzz.verdict import Finding
    from fsdpfuzz.wire import Target

SCRIPT = "repro.py"
COLLECT_SECONDS = 120.0
MAX_NOTE = 4_000


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="repro")(repro_command)


def repro_command(
    case: CasePath,
    to: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=path_from("-o"),
            metavar="FILE",
            help="Write the script here.",
        ),
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
    known: KnownPath = None,
    python: PythonPath = None,
    target: OwnTarget = None,
    injection: InjectionName = None,
) -> None:
    """Write a saved case as a script that needs torch only, to be run with torchrun.

    The script shows the finding that is saved with the case, or without one whether FSDP
    trains as the plain model does. Where only a text of the finding is saved, the case is run
    to find it again.

    With --verify the exit code is 1 if the script shows it, 0 if it does not, and 3 if the
    script ends in another way. Without, it is 0.
    """
    from fsdpfuzz.repro import issue_text

    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    entry = read_with_finding(case)
    if entry.found is None and (issue or ablate):
        option = "--issue" if issue else "--ablate"
        raise UsageError(one_line(f"{option}: no finding is saved with the case in {case}"))
    if to is not None:
        writable_parent(to, "-o")
    defects = known_file(known)
    ranks_on = interpreter(python)
    own = permitted(target, [entry.case], ranks_on)
    finding = finding_of(entry, case, backend, injection, ranks_on)
    told = _known_as(case, entry, finding, defects, ranks_on) if issue else ()
    ablation = None
    if ablate and finding is not None:
        ablation = _ablation(entry, finding, backend, injection, ranks_on, own)
    context = context_of(
        entry,
        script=to.name if to is not None else SCRIPT,
        ablation=ablation,
        machine=_machine(ranks_on) if issue or ablate or verify or ranks_on else None,
    )
    context = msgspec.structs.replace(context, folder=own.folder if own is not None else "")
    script = _rendered(case, entry, finding, context)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the encoding cannot say is written as Python escapes it.
        sys.stdout.reconfigure(errors="backslashreplace")
    if to is not None:
        _write(to, script)
    if issue and finding is not None:
        print(_with_note(issue_text(entry.case, finding, context, script), told), end="")
        print(_collect_env(ranks_on), end="")
    elif to is None:
        print(script, end="")
    if verify:
        raise typer.Exit(_verified(entry, finding, script, backend, injection, ranks_on))


def _known_as(
    file: Path,
    entry: Entry,
    finding: Finding | None,
    path: Path | None,
    python: Interpreter | None,
) -> tuple[str, ...]:
    """What to say of the known defect that explains the finding, a line each; none if none does.

    The file of a known defect needs no other to explain it.
    """
    from fsdpfuzz.known import Known, defect_in
    from fsdpfuzz.loop import installed_torch

    if entry.defect:
        return _words_of(entry.defect, defect_in(file))
    if entry.found is None or finding is None or path is None:
        return ()
    known = Known.load(path)
    torch = entry.found.torch or (installed_torch() if python is None else python.torch)
    name = known.match(entry.case, finding, torch=torch, backend=entry.found.backend)
    return () if name is None else _words_of(name, known.defects[name])


def _words_of(name: str, defect: Defect) -> tuple[str, ...]:
    link = f", {defect.link}" if defect.link else ""
    return f"{name}: {defect.title}{link}", defect.reason


def _with_note(issue: str, known: tuple[str, ...]) -> str:
    """The text of an issue that says first of all that the finding is known, and why."""
    if not known:
        return issue
    title, line_end, body = issue.partition("\n")
    told = "\n>\n".join(f"> {one_line(text, MAX_NOTE)}" for text in known)
    return f"{title}{line_end}\n{told.replace('> ', '> This is known to fsdpfuzz as ', 1)}\n{body}"


def _collect_env(python: Interpreter | None) -> str:
    """What PyTorch's bug report asks for, as torch itself gives it; empty if it does not."""
    try:
        done = subprocess.run(
            [python.executable if python else sys.executable, "-m", "torch.utils.collect_env"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COLLECT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = (one_line(line) for line in done.stdout.strip().splitlines())
    return "\n".join(["", "```", *lines, "```", ""])


def _rendered(path: Path, entry: Entry, finding: Finding | None, context: Context) -> str:
    from fsdpfuzz.repro import render

    if finding is None or entry.found is None or entry.found.finding is None:
        return render(entry.case, finding, context)
    try:
        return render(entry.case, finding, context)
    except (ContractError, LookupError, ValueError, SyntaxError) as error:
        # The file says what the case cannot show; what fsdpfuzz found itself never comes here.
        reason = f"it does not fit the case: {type(error).__name__}: {error}"
        raise CaseError(reason, path="$.found.finding", source=str(path)) from None


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
    from fsdpfuzz.repro import Context, environment_of, torch_version

    found = entry.found
    here = environment_of(machine) if machine is not None else ()
    if found is None:
        torch = machine.torch if machine is not None else installed_torch()
        return Context(torch=torch, environment=here, script=script)
    return Context(
        torch=found.torch,
        backend=found.backend,
        environment=(f"found on {found.date}",),
        here=(torch_version(machine.torch), *here) if machine is not None else (),
        ablation=ablation,
        rate=found.rate.removeprefix("failed "),
        script=script,
    )


def _machine(python: Interpreter | None) -> Machine | None:
    """This machine, as that Python finds it; None without torch, for a script can be written."""
    from fsdpfuzz.pool import probe_machine

    try:
        return probe_machine(python)
    except (MachineError, PoolError):
        return None


def _ablation(
    entry: Entry,
    finding: Finding,
    backend: str,
    injection: str | None,
    python: Interpreter | None,
    target: Target | None,
) -> Ablation:
    from fsdpfuzz.loop import Session, SessionSettings, resolve_machine
    from fsdpfuzz.reduce import MOST_RANKS, ablate

    machine = resolve_machine(backend, (entry.case.world_size,), python)
    with tempfile.TemporaryDirectory() as folder:
        settings = SessionSettings(
            injection=injection,
            output=Path(folder),
            reruns=0,
            python=python,
            target=target,
        ).on(machine)
        with Session(settings) as session:
            return ablate(
                entry.case,
                finding,
                lambda case: session.examine(case).verdict,
                max_ranks=min(MOST_RANKS, machine.most_ranks),
            )


def _verified(
    entry: Entry,
    finding: Finding | None,
    script: str,
    backend: str,
    injection: str | None,
    python: Interpreter | None,
) -> int:
    """Runs the script; 1 if it reproduces, 0 if not. :class:`MachineError` if it cannot tell."""
    from fsdpfuzz.loop import FLAKY_ATTEMPTS, injection_launcher, resolve_machine
    from fsdpfuzz.repro import verify

    machine = resolve_machine(backend, (entry.case.world_size,), python)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SCRIPT
        _write(path, script)
        seen = verify(
            path,
            entry.case.world_size,
            machine.backend,
            finding,
            launcher=injection_launcher(injection),
            attempts=FLAKY_ATTEMPTS if entry.found is not None and entry.found.rate else 1,
            python=python.executable if python is not None else None,
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
