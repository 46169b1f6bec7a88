"""The summary of a run, on standard output."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fsdpfuzz.cli._output import console
from fsdpfuzz.errors import one_line
from fsdpfuzz.loop import Found, Summary

_CHANGES: dict[str, str] = {
    "regression": "regression",
    "fixed": "fixed",
    "changed": "otherwise",
}


def print_summary(summary: Summary, known_cases: Mapping[str, int], report: Path) -> None:
    """Prints the table of counts, the findings, and where the report is.

    ``known_cases`` says in how many cases each known defect showed.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = console()
    counts = summary.counts
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    new = [found for found in summary.findings if found.known is None]
    for name, value in (
        ("drawn", str(counts.drawn)),
        ("skipped", str(counts.skipped)),
        ("examples", str(counts.examples)),
        ("passed", str(counts.passed)),
        ("rejected", str(counts.rejected)),
        ("vacuous", str(counts.vacuous)),
        ("failed", str(counts.failed)),
        ("findings, new", str(len(new))),
        ("findings, known", str(len(summary.findings) - len(new))),
        ("unconfirmed", str(len(summary.unconfirmed))),
        ("harness errors", str(summary.harness_errors)),
        ("pool restarts", str(summary.pool_restarts)),
        ("seconds", f"{summary.seconds:.1f}"),
        ("examples a second", f"{summary.examples_per_second:.1f}"),
        ("seed", str(summary.started.seed)),
    ):
        table.add_row(name, value)
    out.print(table)
    lines = [line for found in new for line in _lines(found)]
    lines += _differences(summary)
    lines += [_doubtful(found) for found in summary.unconfirmed]
    lines += [one_line(text) for text in summary.harness]
    lines += _known_lines(summary, known_cases)
    lines.append(f"report  {report}")
    out.print(Text("\n".join(lines)), soft_wrap=True)


def _lines(found: Found) -> list[str]:
    lines = [
        f"{found.finding.key} (new, {found.property_name})",
        textwrap.indent(found.message, "  "),
    ]
    lines += [f"  {line}" for line in found.begins]
    if found.plan:
        lines += ["  wrapped by", textwrap.indent(found.plan, "    ")]
    lines += [f"  also   {key}" for key in found.also]
    lines.append(f"  case   {found.case}")
    script = found.script
    if script is not None:
        confirmed = "confirmed" if script.confirmed else "not confirmed"
        lines.append(f"  repro  {script.path or 'none'} ({confirmed})")
        lines += [f"         {line}" for line in (script.note, *script.ablation)]
    return lines


def _differences(summary: Summary) -> list[str]:
    """One line for each thing that differs between two torches."""
    against = summary.started.against
    if not against:
        return []
    shown: dict[tuple[str, str], int] = {}
    for found in summary.findings:
        if found.finding.change:
            what = f"known as {found.known}" if found.known else found.finding.plain.key
            shown[found.finding.change, what] = shown.get((found.finding.change, what), 0) + 1
    lines = [f"torch {summary.started.torch} against {against}: {'' if shown else 'no difference'}"]
    lines += [
        one_line(f"  {_CHANGES[change]:<11} {what}, {_many(n, 'finding')}")
        for (change, what), n in sorted(shown.items())
    ]
    return [line.rstrip() for line in lines]


def _doubtful(found: Found) -> str:
    why = f"({found.rate})" if found.rate else "(its script does not show it)"
    return one_line(f"unconfirmed {why}: {found.finding.key}; case {found.case}")


def _known_lines(summary: Summary, cases: Mapping[str, int]) -> list[str]:
    """One line for each known defect, however many findings it showed as."""
    shown = Counter(
        found.known
        for found in summary.findings
        if found.known is not None and found.finding.change != "fixed"
    )
    lines = []
    for name, n in sorted(shown.items()):
        findings = _many(n, "finding")
        # No case of those that were drawn: one that an earlier run left, or that torches differ in.
        told = (
            f"{_many(cases[name], 'case')}, {findings}"
            if cases.get(name)
            else f"{findings}, before any case was drawn"
        )
        lines.append(one_line(f"known as {name}: {told}"))
    return lines


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
