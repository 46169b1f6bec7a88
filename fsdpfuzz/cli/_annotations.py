"""Annotations that GitHub shows on a workflow's page: lines of a form of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdpfuzz.loop import Summary

VARIABLE = "GITHUB_ACTIONS"


def wanted() -> bool:
    """Whether this runs in a GitHub workflow."""
    return os.environ.get(VARIABLE, "").lower() not in ("", "0", "false")


def notes_of(summary: Summary) -> list[str]:
    """An error for each finding for which the run fails, and a notice for each known defect."""
    failing = summary.failing
    lines = [
        f"::error title={_value(found.finding.key)}::"
        + _text(f"{found.message}\nfsdpfuzz repro {found.case}")
        for found in failing
    ]
    here = [found for found in summary.findings if found.finding.change != "fixed"]
    known = {found.known for found in here if found.known and found not in failing}
    if summary.failure is not None:
        lines.append(f"::error title=fsdpfuzz::{_text(summary.failure)}")
    return [
        *lines,
        *(f"::notice title=known defect::{_text(name)} still shows" for name in sorted(known)),
    ]


# % first, or it would be put before what stands for the others.
def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
