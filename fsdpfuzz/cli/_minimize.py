"""``fsdpfuzz minimize``."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    seconds_from,
    writable_parent,
)
from fsdpfuzz.errors import UsageError, one_line

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Entry
    from fsdpfuzz.loop import Event, Examined, Reduction, Session, SessionSettings
    from fsdpfuzz.pool import Interpreter
    from fsdpfuzz.verdict import Finding

SECONDS = 300.0
RUNS = 2_000
DAY = 86_400.0


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="minimize")(minimize_command)


def minimize_command(
    case: CasePath,
    to: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=path_from("-o"),
            metavar="FILE",
            help="Write it here; default CASE-minimal.json.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--finding", metavar="KEY", help="Which finding; default the saved or first."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--max-seconds",
            "--seconds",
            parser=seconds_from("--max-seconds", DAY),
            metavar="SECONDS",
            help="Time that it may take.",
        ),
    ] = SECONDS,
    backend: Annotated[str, typer.Option(metavar="B", help="auto, gloo or nccl.")] = "auto",
    known: KnownPath = None,
    python: PythonPath = None,
    target_code: OwnTarget = None,
    injection: InjectionName = None,
) -> None:
    """Reduce a case, saved or written by hand, to the smallest that shows the same finding.

    A known finding is reduced like any other. Exit code 2 if the case shows nothing.
    """
    from fsdpfuzz.corpus import read_entry

    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    entry = read_entry(case)
    target = to if to is not None else case.with_name(f"{case.stem}-minimal.json")
    writable_parent(target, "-o")
    known_path = known_file(known)
    ranks_on = interpreter(python)
    own = permitted(target_code, [entry.case], ranks_on)
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(entry, backend, Path(folder), known_path, injection, seconds, ranks_on)
        settings = replace(settings, target=own)
        _reduced(case, entry, key, settings, target)


def _settings(
    entry: Entry,
    backend: str,
    output: Path,
    known: Path | None,
    injection: str | None,
    seconds: float,
    python: Interpreter | None,
) -> SessionSettings:
    from fsdpfuzz.loop import PROFILES, SessionSettings, resolve_machine

    machine = resolve_machine(backend, (entry.case.world_size,), python)
    return SessionSettings(
        profile=replace(PROFILES["dev"], shrink_seconds=seconds, shrink_tries=RUNS),
        injection=injection,
        output=output,
        known=known,
        python=python,
    ).on(machine)


def _reduced(
    path: Path, entry: Entry, key: str | None, settings: SessionSettings, target: Path
) -> None:
    from fsdpfuzz.case import encode
    from fsdpfuzz.loop import Session

    with Session(settings) as session:
        examined = session.examine(entry.case)
        finding = _chosen(path, entry, key, examined, session)
        name = examined.known.get(finding.key)
        if name is None:
            reduction = _run(session, examined, finding)
    if name is not None:
        # With what is known aside, it is reduced as if it were new.
        with Session(replace(settings, known=None)) as session:
            reduction = _run(session, session.examine(entry.case), finding)
    # What the ranks ran on, which they tell with their answers.
    if settings.torch != session.torch:
        settings = replace(settings, torch=session.torch)
    _write(target, entry, reduction, settings)
    before, after = len(encode(entry.case)), len(encode(reduction.examined.case))
    words = f"{reduction.steps} step{'' if reduction.steps == 1 else 's'}"
    known = f" (known as {name})" if name is not None else ""
    print(
        one_line(f"{target}: {before} -> {after} bytes in {words}, {reduction.finding.key}{known}")
    )


def _chosen(
    path: Path, entry: Entry, key: str | None, examined: Examined, session: Session
) -> Finding:
    """The finding to reduce for: named, else the one that is saved, else the first."""
    from fsdpfuzz.reduce import alike

    findings = examined.verdict.findings
    here = f"on torch {session.torch}, {session.settings.backend}, the case"
    if not findings:
        status = examined.verdict.status
        raise UsageError(one_line(f"{path}: {here} shows nothing to reduce for: {status}"))
    shown = ", ".join(finding.key for finding in findings)
    steady = [finding for finding in findings if finding.key not in examined.rates]
    if key is not None:
        steady = [finding for finding in steady if finding.key == key]
    elif entry.found is not None:
        saved = entry.found
        same = [finding for finding in steady if finding.key == saved.key]
        if not same and saved.finding is not None:
            same = [finding for finding in steady if alike(saved.finding, finding)]
        steady, key = same or steady, None if same else saved.key
        if key is not None and steady:
            print(f"fsdpfuzz: {one_line(key)} does not show; the first is taken", file=sys.stderr)
    if not steady:
        wanted = f", not {key}" if key is not None else " only now and then"
        raise UsageError(one_line(f"{path}: {here} shows {shown}{wanted}"))
    return steady[0]


def _run(session: Session, examined: Examined, finding: Finding) -> Reduction:
    from fsdpfuzz.cli._progress import progress
    from fsdpfuzz.loop import Reduction

    with progress() as show:

        def emit(event: Event) -> None:
            show(event)

        reduction = Reduction(session, examined, finding, emit)
        try:
            reduction.run()
        except KeyboardInterrupt:
            # The smallest so far is worth keeping.
            session.abandon()
    return reduction


def _write(target: Path, entry: Entry, reduction: Reduction, settings: SessionSettings) -> None:
    from fsdpfuzz.corpus import Entry, Found, write_entry

    finding = reduction.finding
    found = Found(
        key=finding.key,
        message=finding.message,
        finding=finding,
        property=entry.found.property if entry.found is not None else "minimize",
        torch=settings.torch,
        backend=settings.backend,
        world_size=reduction.examined.case.world_size,
        date=datetime.now(UTC).date().isoformat(),
        seed=entry.found.seed if entry.found is not None else 0,
        shrink_steps=reduction.steps,
    )
    try:
        write_entry(target, Entry(case=reduction.examined.case, found=found))
    except OSError as error:
        raise UsageError(one_line(f"{target}: cannot be written: {error.strerror}")) from None
