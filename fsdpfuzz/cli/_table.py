"""The summary of a run, on standard output."""

from __future__ import annotations

import textwrap

from fsdpfuzz.loop import Found, Summary


def print_summary(summary: Summary) -> None:
    """Prints the table of counts and the findings; fits a terminal of any width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    counts = summary.counts
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    new = sum(found.known is None for found in summary.findings)
    for name, value in (
        ("examples", str(counts.examples)),
        ("passed", str(counts.passed)),
        ("rejected", str(counts.rejected)),
        ("vacuous", str(counts.vacuous)),
        ("findings, new", str(new)),
        ("findings, known", str(len(summary.findings) - new)),
        ("pool restarts", str(summary.pool_restarts)),
        ("seconds", f"{summary.seconds:.1f}"),
        ("examples a second", f"{summary.examples_per_second:.1f}"),
        ("seed", str(summary.started.seed)),
    ):
        table.add_row(name, value)
    console.print(table)
    for found in summary.findings:
        console.print(Text("\n".join(_lines(found))))


def _lines(found: Found) -> list[str]:
    kind = f"known as {found.known}" if found.known else "new"
    lines = [
        f"{found.finding.key} ({kind}, {found.property_name})",
        textwrap.indent(found.message, "  "),
    ]
    lines.append(f"  case   {found.case}")
    script = found.script
    if script is not None:
        confirmed = "confirmed" if script.confirmed else "not confirmed"
        lines.append(f"  repro  {script.path or 'none'} ({confirmed})")
        lines += [f"         {line}" for line in (script.note, *script.ablation)]
    return lines
