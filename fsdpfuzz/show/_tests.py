"""What a pytest run says of the cases that its tests checked: of a failure, and at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.errors import one_line
from fsdpfuzz.loop import Found, Summary, summary_document
from fsdpfuzz.show._draw import draw
from fsdpfuzz.show._merge import merged
from fsdpfuzz.show._record import RunRecord


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a pytest run checked; processes hand it on as JSON."""

    record: RunRecord
    document: dict[str, Any]
    """As `summary_document`."""


def as_part(summary: Summary, record: RunRecord) -> bytes:
    """The result of one process, to be put together by `joined`."""
    made = Checked(record=record, document=summary_document(summary))
    # Texts of ranks may be no UTF-8, which the standard library writes as escapes.
    return json.dumps(msgspec.to_builtins(made)).encode()


def joined(parts: Iterable[bytes]) -> Checked:
    """The results of all processes, of which there is at least one, as one."""
    first, *others = [msgspec.convert(json.loads(part), Checked) for part in parts]
    document = dict(first.document)
    for other in others:
        for name in COUNTS:
            document[name] += other.document[name]
        for name in ("findings", "unconfirmed"):
            met = {(found["key"], found["known"]) for found in document[name]}
            others_too = other.document[name]
            document[name] = [
                *document[name],
                *(found for found in others_too if (found["key"], found["known"]) not in met),
            ]
        document["seconds"] = max(document["seconds"], other.document["seconds"])
    seconds = document["seconds"]
    document["examples_per_second"] = round(document["examples"] / seconds, 3) if seconds else 0.0
    return Checked(
        record=merged([first.record, *(other.record for other in others)]), document=document
    )


COUNTS = (
    "examples",
    "passed",
    "rejected",
    "vacuous",
    "failed",
    "skipped",
    "drawn",
    "pool_restarts",
    "harness_errors",
)
"""The fields of a result that add up over processes."""


def failure_text(found: Found, case: CaseSpec) -> str:
    """A finding as a failing test shows it: message, drawing, file, and what to do next."""
    lines = [found.finding.key, *(f"  {line}" for line in found.message.splitlines())]
    lines += [f"  {line}" for line in found.begins]
    if found.plan:
        lines += ["", "wrapped by", *(f"  {line}" for line in found.plan.splitlines())]
    lines += ["", draw(case), f"case   {one_line(str(found.case))}"]
    return "\n".join([*lines, f"repro  {repro_command(found.case)}"])


def repro_command(path: Path) -> str:
    """What makes a script of a saved case and runs it."""
    import shlex

    return one_line(f"fsdpfuzz repro {shlex.quote(str(path))} -o repro.py --verify")


def none_left(passed_over: Mapping[str, int]) -> str:
    """Why a test had no case to run: what it drew was ``passed_over``, for so many reasons."""
    words = {"machine": "this machine or its torch cannot run", "refused": "FSDP refuses"}
    lines = [
        f"  {_cases(n)} that {words.get(why, f'can show a known defect, {one_line(why)}')}"
        for why, n in passed_over.items()
    ]
    return "\n".join(["no case was run: nothing was drawn that is worth one", *lines])


def _cases(number: int) -> str:
    return f"{number} case{'' if number == 1 else 's'}"


def closing_lines(result: Checked, written: Mapping[str, Path]) -> list[str]:
    """The section at the end of a pytest run. ``written``: the files ``report`` and ``json``."""
    document = result.document
    counts = ", ".join(
        f"{document[name]} {name}" for name in ("passed", "rejected", "vacuous", "failed")
    )
    lines = [f"{_cases(document['examples'])}: {counts}"]
    lines += [
        f"known defect met: {one_line(met.id)}, {_cases(met.cases)}"
        for met in result.record.known_met
    ]
    new = [found for found in document["findings"] if found["known"] is None]
    lines.append(f"new findings: {len(new)}")
    for found in new:
        lines += [f"  {one_line(found['key'])}", f"    case {one_line(found['case'])}"]
    if unconfirmed := len(document["unconfirmed"]):
        lines.append(f"unconfirmed: {unconfirmed}, which showed once and not again")
        for found in document["unconfirmed"]:
            lines += [f"  {one_line(found['key'])}", f"    case {one_line(found['case'])}"]
    if errors := document["harness_errors"]:
        lines.append(f"harness errors: {errors}, the fault of fsdpfuzz or of the machine")
        lines += [f"  {one_line(text)}" for text in result.record.harness]
    for name in ("report", "json"):
        to = written.get(name)
        asked = f"not asked for, --fsdpfuzz-{name}=FILE writes it"
        lines.append(f"{name}: {asked if to is None else one_line(str(to))}")
    return lines
