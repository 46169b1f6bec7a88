"""``fsdpfuzz corpus``: list, show, add, prune, check, seeds, known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsdpfuzz.case.base import ranks_in_words
from fsdpfuzz.cli import _known
from fsdpfuzz.cli._group import Group
from fsdpfuzz.cli._options import (
    CasePath,
    CasePaths,
    InjectionName,
    PythonPath,
    path_from,
    usable_folder,
)
from fsdpfuzz.cli._output import console, fitting
from fsdpfuzz.errors import UsageError, one_line
from fsdpfuzz.loop import OUTPUT, default_corpus

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Row

CORPUS = Path("corpus")

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        parser=path_from("PATH"),
        metavar="PATH",
        help="Saved cases, or folders of them; default corpus, else those shipped.",
    ),
]


def add(app: typer.Typer) -> None:
    """Registers the commands."""
    group = typer.Typer(cls=Group, help="Look after saved cases.", no_args_is_help=True)
    group.command(name="list")(list_command)
    group.command(name="show")(show_command)
    group.command(name="add")(add_command)
    group.command(name="prune")(prune_command)
    group.command(name="check")(check_command)
    group.command(name="seeds")(seeds_command)
    _known.add(group)
    app.add_typer(group, name="corpus")


def list_command(paths: Paths = None) -> None:
    """List saved cases, one a line: digest, API, ranks, file, what it shows.

    Exit code 2 if one cannot be read.
    """
    from fsdpfuzz.corpus import rows

    faults = 0
    for row in rows(paths or [default_corpus()]):
        if row.entry is None:
            faults += 1
            print(f"fsdpfuzz: {row.fault}", file=sys.stderr)
        else:
            print(fitting(_line(row)))
    if faults:
        raise UsageError(f"PATH: {faults} {'file holds' if faults == 1 else 'files hold'} no case")


def show_command(
    case: CasePath,
) -> None:
    """Print where a case comes from, its options and its JSON."""
    from fsdpfuzz.corpus import describe, read_entry

    console().print(describe(read_entry(case)), end="", soft_wrap=True)


def add_command(
    paths: CasePaths,
    to: Annotated[
        Path,
        typer.Option(
            "--to", parser=path_from("--to"), metavar="DIR", help="Folder that takes them."
        ),
    ] = CORPUS / "failures",
    origin: Annotated[
        str, typer.Option(metavar="TEXT", help="What the cases restate, kept with them.")
    ] = "",
) -> None:
    """Copy cases into a corpus, each once. Nothing is copied if one cannot be read."""
    from fsdpfuzz.corpus import add_cases

    usable_folder(to, "--to")
    for added in add_cases(paths, to, origin=origin):
        word = "added" if added.new else "there already"
        print(one_line(f"{added.source}: {word}, {added.path}"))


def prune_command(
    folder: Annotated[
        Path,
        typer.Argument(parser=path_from("DIR"), metavar="DIR", help="The corpus to tidy up."),
    ] = CORPUS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove copies of a case, and cases that were shrunk to a smaller one."""
    from fsdpfuzz.corpus import prunable

    if not folder.is_dir():
        raise UsageError(one_line(f"DIR: there is no folder {str(folder)!r}"))
    removals = prunable(folder)
    for removal in removals:
        if not dry_run:
            try:
                removal.path.unlink(missing_ok=True)
            except OSError as error:
                raise UsageError(
                    one_line(f"{removal.path}: cannot be removed: {error.strerror}")
                ) from None
        word = "would go" if dry_run else "removed"
        print(one_line(f"{removal.path}: {word}, {removal.reason}: {removal.instead}"))
    print(f"{len(removals)} {'file' if len(removals) == 1 else 'files'}")


def seeds_command(
    folder: Annotated[
        Path,
        typer.Argument(parser=path_from("DIR"), metavar="DIR", help="Folder that takes them."),
    ] = CORPUS / "seeds",
) -> None:
    """Write the seeds, one case a file, over those that are there."""
    from fsdpfuzz.corpus import write_seeds

    usable_folder(folder, "DIR")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{len(write_seeds(folder))} seeds in {folder}")


def check_command(
    known: Annotated[
        Path | None,
        typer.Argument(
            parser=path_from("DIR"), metavar="DIR", help="Known defects; else corpus/known."
        ),
    ] = None,
    backend: _known.BackendChoice = "auto",
    output: _known.CheckFolder = OUTPUT,
    python: PythonPath = None,
    injection: InjectionName = None,
) -> None:
    """Run the case of each known defect and say which no longer fail: `corpus known check`.

    Exit code 1 if one no longer shows what it is kept for.
    """
    _known.run_check(_known.known_folder(known), backend, output, injection, python)


def _line(row: Row) -> str:
    entry = row.entry
    if entry is None:
        return row.fault
    what = entry.found.key if entry.found is not None else entry.origin
    ranks = ranks_in_words(entry.case.world_size)
    return one_line(f"{entry.digest}  {entry.case.api}  {ranks}  {row.path}  {what}").rstrip()
