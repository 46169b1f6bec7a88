"""``fsdpfuzz corpus known``: add, check, list."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from fsdpfuzz.cli._finding import finding_of, read_with_finding
from fsdpfuzz.cli._group import Group
from fsdpfuzz.cli._options import (
    InjectionName,
    PythonPath,
    chosen,
    interpreter,
    known_file,
    path_from,
    usable_folder,
)
from fsdpfuzz.errors import CaseError, UsageError, one_line
from fsdpfuzz.loop import OUTPUT

if TYPE_CHECKING:
    from fsdpfuzz.case import CaseSpec
    from fsdpfuzz.corpus import Entry
    from fsdpfuzz.known import Checked, Defect, Predicate, Proposal
    from fsdpfuzz.loop import Session
    from fsdpfuzz.pool import Interpreter
    from fsdpfuzz.verdict import Finding, Verdict
    from fsdpfuzz.wire import Backend

FOLDER = Path("corpus/known")

Known = Annotated[
    Path | None,
    typer.Option(
        "--known",
        parser=path_from("--known"),
        metavar="DIR",
        help="Known defects; else corpus/known.",
    ),
]
CheckFolder = Annotated[
    Path,
    typer.Option(
        parser=path_from("--output"),
        metavar="DIR",
        help="Folder for what the check itself leaves.",
    ),
]
BackendChoice = Annotated[str, typer.Option(metavar="B", help="auto, gloo or nccl.")]


def add(app: typer.Typer) -> None:
    """Registers the commands."""
    group = typer.Typer(cls=Group, help="Look after known defects.", no_args_is_help=True)
    group.command(name="add")(add_command)
    group.command(name="check")(check_command)
    group.command(name="list")(list_command)
    app.add_typer(group, name="known")


def add_command(
    failure: Annotated[
        Path,
        typer.Argument(
            parser=path_from("FAILURE"), metavar="FAILURE", help="A saved case with its finding."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Name of the new file.")
    ] = None,
    known: Annotated[
        Path,
        typer.Option(
            "--known", parser=path_from("--known"), metavar="DIR", help="Folder that takes it."
        ),
    ] = FOLDER,
    backend: BackendChoice = "auto",
    python: PythonPath = None,
    injection: InjectionName = None,
) -> None:
    """Make a finding a known defect, as narrow as plainer cases allow.

    The case is reduced and its plainer neighbours are run; what the finding needs is asked for.
    The file is written once, and a person then fills in what only a person can know.
    """
    from fsdpfuzz.corpus import slug
    from fsdpfuzz.known import is_id, write_defect
    from fsdpfuzz.known.files import ID_WORDS
    from fsdpfuzz.repro.header import title

    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    if name is not None and not is_id(name):
        raise UsageError(one_line(f"--id: {name!r} is not an id: {ID_WORDS}"))
    entry = read_with_finding(failure)
    ranks_on = interpreter(python)
    finding = finding_of(entry, failure, backend, injection, ranks_on)
    if finding is None:
        raise UsageError(one_line(f"{failure}: no finding is saved with the case"))
    words = title(entry.case, finding)
    # Asked before the case is reduced, which takes minutes, and once more as the file is written.
    target = known / f"{name or slug(words)}.json"
    if target.exists():
        raise UsageError(one_line(f"{target}: is there already; name another with --id"))
    usable_folder(known, "--known")
    proposal = _proposed(failure, entry, finding, words, known, backend, injection, ranks_on)
    write_defect(target, proposal.defect)
    for line in _told(target, proposal):
        print(one_line(line))


def _proposed(
    path: Path,
    entry: Entry,
    finding: Finding,
    title: str,
    known: Path,
    backend: str,
    injection: str | None,
    python: Interpreter | None,
) -> Proposal:
    from fsdpfuzz import loop
    from fsdpfuzz.known import propose
    from fsdpfuzz.reduce import MOST_RANKS, alike

    machine = loop.resolve_machine(backend, (entry.case.world_size,), python)
    with tempfile.TemporaryDirectory() as folder:
        settings = loop.SessionSettings(
            injection=injection,
            output=Path(folder),
            known=known,
            python=python,
        ).on(machine)
        with loop.Session(settings) as session:
            first = session.examine(entry.case)
            if (name := next(iter(first.known.values()), None)) and not first.news:
                raise UsageError(one_line(f"{path}: it is known as {name} already"))
            if not any(alike(finding, found) for found in first.news):
                shown = ", ".join(f.key for f in first.verdict.findings) or "nothing"
                raise UsageError(
                    one_line(
                        f"{path}: on torch {machine.torch}, {machine.backend}, the case shows "
                        f"{shown}, not {finding.key}"
                    )
                )
            return propose(
                entry.case,
                finding,
                lambda case: _news(session, case, despite=session.lacks(entry.case)),
                title=title,
                seen=_seen(entry, machine.torch, machine.backend),
                date=datetime.now(UTC).date().isoformat(),
                max_ranks=min(MOST_RANKS, machine.most_ranks),
            )


def _news(session: Session, case: CaseSpec, *, despite: str) -> Verdict:
    """The verdict on a case without what is known; if all is known it says nothing.

    Nor does it of one that these ranks lack something for, other than they are to run ``despite``.
    """
    from fsdpfuzz.verdict import Verdict

    if session.lacks(case) not in ("", despite):
        return Verdict(status="rejected", reason=f"it needs {session.lacks(case)}")
    examined = session.examine(case)
    if examined.verdict.findings and not examined.news:
        return Verdict(status="vacuous", reason="all that it shows is known")
    return Verdict(
        status=examined.verdict.status, findings=examined.news, reason=examined.verdict.reason
    )


def _seen(entry: Entry, torch: str, backend: str) -> dict[Backend, tuple[str, ...]]:
    """The releases by backend: where the failure was saved, and here."""
    from packaging.version import InvalidVersion, Version

    from fsdpfuzz.wire import Backend

    seen: dict[Backend, tuple[str, ...]] = {}
    found = [(entry.found.torch, entry.found.backend)] if entry.found is not None else []
    for version, where in (*found, (torch, backend)):
        try:
            release = Version(version).base_version
        except InvalidVersion:
            continue
        for known in get_args(Backend):
            if known == where and release not in seen.get(known, ()):
                seen[known] = (*seen.get(known, ()), release)
    return seen


def _told(target: Path, proposal: Proposal) -> list[str]:
    defect = proposal.defect
    lines = [
        f"{target}: written",
        f"asks for: {_predicate(defect.when)}",
        f"rests on: {proposal.without} plainer cases that do not show it, "
        f"{proposal.showing} that do",
    ]
    if proposal.despite:
        lines.append(f"needed, too, but no feature: {', '.join(proposal.despite)}")
    return [*lines, f"to be filled in: {', '.join(defect.unwritten)}"]


def _predicate(when: Predicate) -> str:
    parts = (("", when.case), ("a unit with ", when.unit), ("a parameter with ", when.parameter))
    return "; ".join(
        words + ", ".join(f"{name}={'|'.join(values)}" for name, values in asked.items())
        for words, asked in parts
        if asked
    )


def check_command(
    known: Known = None,
    backend: BackendChoice = "auto",
    output: CheckFolder = OUTPUT,
    python: PythonPath = None,
    injection: InjectionName = None,
) -> None:
    """Run the smallest case of each known defect and say what became of it.

    Also that it refuses the findings that are not to be taken for it; a file that does not is
    an error. Exit code 1 if a file has to be changed.
    """
    run_check(known_folder(known), backend, output, injection, python)


def known_folder(option: Path | None) -> Path:
    """The known defects that an option means."""
    path = known_file(option)
    if path is None:
        raise UsageError(f"--known: there is no folder {FOLDER} here; name one")
    return path


def run_check(
    path: Path, backend: str, output: Path, injection: str | None, python: Path | None
) -> None:
    """Checks and tells; ends with the exit code."""
    from fsdpfuzz import loop
    from fsdpfuzz.known import Known, check_known

    chosen(backend, ("auto", "gloo", "nccl"), "--backend")
    entries = Known.load(path)
    usable_folder(output, "--output")
    ranks_on = interpreter(python)
    machine = loop.resolve_machine(backend, (1,), ranks_on)
    # No known defects: the entries are compared with the bare findings here.
    settings = loop.SessionSettings(
        output=output,
        injection=injection,
        python=ranks_on,
    ).on(machine)
    stale = 0
    with loop.Session(settings) as session:
        for checked in check_known(
            entries,
            lambda case: session.examine(case).verdict.findings,
            torch=machine.torch,
            backend=machine.backend,
            most_ranks=machine.most_ranks,
            lacks=lambda case: loop.lacking_in_torch(case, machine.offers),
        ):
            stale += checked.stale
            print(outcome(checked), flush=True)
    raise typer.Exit(1 if stale else 0)


def outcome(checked: Checked) -> str:
    """What came of one known defect, in one line."""
    words = {
        "shows": "still shows",
        "gone": "no longer fails: the entry can go, or the case needs another look",
        "differs": "fails in another way",
        "skipped": "not run" if checked.case == "not run" else "does not show",
        "also": "shows where the entry does not apply",
    }
    detail = f": {checked.detail}" if checked.detail else ""
    refused = f"; refuses {len(checked.defect.refuses)} others"
    return one_line(f"{checked.name}: {words[checked.state]}{detail}{refused}")


def list_command(known: Known = None) -> None:
    """List known defects, one a line: id, where it was seen, what FSDP does wrong.

    Exit code 2 if one cannot be read.
    """
    from fsdpfuzz.known import defect_files, read_defect

    faults = 0
    for path in defect_files(known_folder(known)):
        try:
            print(_line(path.stem, read_defect(path)))
        except CaseError as error:
            faults += 1
            print(f"fsdpfuzz: {error}", file=sys.stderr)
    if faults:
        files = "file holds" if faults == 1 else "files hold"
        raise UsageError(f"--known: {faults} {files} no known defect")


def _line(name: str, defect: Defect) -> str:
    seen = ", ".join(
        f"{backend} {releases[0]}" + (f" to {releases[-1]}" if len(releases) > 1 else "")
        for backend, releases in defect.seen.items()
    )
    gone = f", gone in {defect.gone}" if defect.gone is not None else ""
    written = "" if "reason" not in defect.unwritten else "  (reason to be written)"
    return one_line(f"{name}  {seen}{gone}  {defect.title}{written}")
