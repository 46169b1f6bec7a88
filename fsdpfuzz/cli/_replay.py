"""``fsdpfuzz replay``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsdpfuzz.cli._bisect import answer, bisected, telling_bisect
from fsdpfuzz.cli._options import (
    CasePaths,
    InjectionName,
    KnownPath,
    OwnTarget,
    PythonPath,
    chosen,
    interpreter,
    known_file,
    path_from,
    permitted,
    usable_folder,
)
from fsdpfuzz.errors import CaseError, UsageError
from fsdpfuzz.loop import OUTPUT, Examined, Session, SessionSettings

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Entry


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="replay")(replay_command)


def replay_command(
    paths: CasePaths,
    backend: Annotated[str, typer.Option(metavar="B", help="auto, gloo or nccl.")] = "auto",
    output: Annotated[
        Path,
        typer.Option(
            parser=path_from("--output"),
            metavar="DIR",
            help="Folder for what the replay itself leaves.",
        ),
    ] = OUTPUT,
    strict: Annotated[bool, typer.Option("--strict", help="Known findings fail, too.")] = False,
    known: KnownPath = None,
    python: PythonPath = None,
    target: OwnTarget = None,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect",
            help="Exit as git bisect run wants it: 1 if the saved finding shows, 0 if not, "
            "125 if nobody can say.",
        ),
    ] = False,
    injection: InjectionName = None,
) -> None:
    """Run saved cases again and say whether each still fails.

    Exit code 1 if one fails that is not known, 2 if a file is no case.
    """
    if bisect:
        with telling_bisect():
            answers = [
                answer(entry, examined)
                for entry, examined in _replayed(
                    paths, backend, output, known, python, injection, target
                )
            ]
            raise typer.Exit(bisected(answers))
    failures = 0
    for _, examined in _replayed(paths, backend, output, known, python, injection, target):
        if examined is not None:
            failures += bool(examined.verdict.findings if strict else examined.news)
    raise typer.Exit(1 if failures else 0)


def _replayed(
    paths: list[Path],
    backend: str,
    output: Path,
    known: Path | None,
    python: Path | None,
    injection: str | None,
    target: str | None,
) -> Iterator[tuple[Entry, Examined | None]]:
    """Each case with what came of it, which is printed; None for one that cannot run here."""
    from fsdpfuzz.loop import lacking_in_torch, resolve_machine
    from fsdpfuzz.seeds import SEEDS, fitting, lacking

    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    known_path = known_file(known)
    # All of them before the first is run: a typing error should not come to light an hour later.
    entries = read_all(paths)
    usable_folder(output, "--output")
    ranks_on = interpreter(python)
    own = permitted(target, (entry.case for _, entry in entries), ranks_on)
    largest = max(entry.case.world_size for _, entry in entries)
    machine = resolve_machine(backend, (largest,), ranks_on)
    settings = SessionSettings(
        output=output,
        known=known_path,
        injection=injection,
        python=ranks_on,
        target=own,
    ).on(machine)
    with Session(settings) as session:
        for path, entry in entries:
            needs = lacking(entry.case, SEEDS, machine.backend)
            if needs := needs or lacking_in_torch(entry.case, machine.offers):
                print(f"{path}: skipped, it needs {needs}", flush=True)
                yield entry, None
                continue
            examined = session.examine(fitting(entry.case, SEEDS, machine.backend))
            print(f"{path}: {outcome(entry, examined)}", flush=True)
            yield entry, examined


def read_all(paths: list[Path]) -> list[tuple[Path, Entry]]:
    """The cases of all files and folders; every bad file is named before the error."""
    from fsdpfuzz.corpus import find_entries, read_entry

    entries: list[tuple[Path, Entry]] = []
    bad = list[CaseError]()
    for path in find_entries(paths):
        try:
            entries.append((path, read_entry(path)))
        except CaseError as error:
            bad.append(error)
    if len(bad) + len(entries) == 1 and bad:
        raise bad[0]
    for one in bad:
        print(f"fsdpfuzz: {one}", file=sys.stderr)
    if bad:
        of = f"{len(bad)} of {len(bad) + len(entries)}"
        raise UsageError(f"PATH: {of} files hold no case; nothing was run")
    if not entries:
        raise UsageError(f"PATH: no cases in {', '.join(str(path) for path in paths)}")
    return entries


def outcome(entry: Entry, examined: Examined) -> str:
    """What came of a case, in one line, against what it was saved for."""
    verdict = examined.verdict
    expected = entry.found.key if entry.found is not None else None
    if not verdict.findings:
        reason = f" ({verdict.reason})" if verdict.reason else ""
        return f"{verdict.status}{reason}" + (f", no longer {expected}" if expected else "")
    parts = []
    for finding in verdict.findings:
        word = "still fails" if finding.key == expected else "fails"
        rate = examined.rates.get(finding.key)
        known = examined.known.get(finding.key)
        parts.append(
            f"{word}: {finding.key}"
            + (f" ({rate})" if rate else "")
            + (f" (known as {known})" if known else "")
        )
    return "; ".join(parts)
