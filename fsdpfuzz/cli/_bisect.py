"""What a replay says to ``git bisect run``: bad, good, or nothing."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import typer

from fsdpfuzz.errors import FsdpFuzzError, one_line

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Entry
    from fsdpfuzz.loop import Examined

GOOD, BAD, UNTOLD = 0, 1, 125
"""Exit codes: git takes 125 for a revision that cannot be judged, and 126 and more ends it."""

Answer = Literal["good", "bad", "untold"]


def answer(entry: Entry, examined: Examined | None) -> Answer:
    """Whether the finding that is saved with a case shows; without one, whether any does.

    One that does not show each time is as bad. Where something else fails, or nothing could be
    checked, it may hide behind that. A documented refusal is good: the defect does not show.
    """
    from fsdpfuzz.reduce import alike

    if examined is None:
        return "untold"
    verdict, found = examined.verdict, entry.found
    findings = (*verdict.findings, *examined.unconfirmed)
    if found is None:
        shows = bool(verdict.findings)
    elif found.finding is None:
        shows = any(finding.key == found.key for finding in findings)
    else:
        shows = any(alike(found.finding, finding) for finding in findings)
    if shows:
        return "bad"
    return "good" if verdict.status in ("passed", "rejected") and not findings else "untold"


def bisected(answers: Sequence[Answer]) -> int:
    """The exit code for all cases: one bad is bad, else one untold is untold."""
    if "bad" in answers:
        return BAD
    return GOOD if answers and "untold" not in answers else UNTOLD


@contextmanager
def telling_bisect() -> Iterator[None]:
    """Whatever goes wrong inside says nothing of the revision: exit code `UNTOLD`."""
    try:
        yield
    except FsdpFuzzError as error:
        print(f"fsdpfuzz: cannot say: {one_line(str(error))}", file=sys.stderr)
        raise typer.Exit(UNTOLD) from None
    # The answer itself; it is an `Exception`, too, so it has to come first.
    except typer.Exit:
        raise
    except Exception:
        # Python itself would end with 1, which git takes for bad.
        traceback.print_exc()
        raise typer.Exit(UNTOLD) from None
