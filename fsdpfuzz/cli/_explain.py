"""``fsdpfuzz explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fsdpfuzz.cli._options import CasePath
from fsdpfuzz.cli._output import console, is_ascii
from fsdpfuzz.errors import one_line

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Entry


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="explain")(explain_command)


def explain_command(
    case: CasePath,
) -> None:
    """Draw a case: the model, what FSDP and checkpointing do to it, and the training."""
    from fsdpfuzz.corpus import read_entry

    print_entry(read_entry(case))


def print_entry(entry: Entry) -> None:
    """Prints the drawing, and above it what is known of where the case comes from."""
    from rich.text import Text

    from fsdpfuzz.show import case_tree, draw, fact_texts

    out = console()
    rows = list(_provenance(entry))
    for label, text in rows:
        out.print(Text.assemble((f"{label:<11}", "dim"), one_line(text)), soft_wrap=True)
    if rows:
        out.print()
    # In ASCII rich draws other branches than those that stand for ours.
    if is_ascii() or not out.is_terminal:
        print(draw(entry.case), end="")
        return
    out.print(case_tree(entry.case))
    for line in fact_texts(entry.case):
        out.print(line, soft_wrap=True)


def _provenance(entry: Entry) -> list[tuple[str, str]]:
    rows = [("restates", entry.origin)] if entry.origin else []
    found = entry.found
    if found is not None:
        met = f"torch {found.torch}, {found.backend}, {found.date}, property {found.property}"
        rows += [("finding", found.key), ("message", found.message), ("met with", met)]
    return rows
