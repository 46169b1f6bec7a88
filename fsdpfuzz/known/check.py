"""Whether the known defects are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
from packaging.version import Version

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.case.base import ranks_in_words
from fsdpfuzz.errors import one_line
from fsdpfuzz.known.defect import Defect
from fsdpfuzz.known.files import Known
from fsdpfuzz.verdict import Finding

State = Literal["shows", "gone", "differs", "skipped", "also"]
Does = Literal["not run", "shows", "passes", "otherwise"]


QUIET_RUNS = 10
"""After so many runs without a finding what an entry describes is gone."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the minimal case of a known defect does today.

    ``shows``: it fails as the entry says. ``gone``: it does not fail any more. ``differs``:
    it fails, but in a way that the entry does not explain. ``skipped``: the entry is about
    another version and it does not fail, or about another backend and it does not fail so, or
    the case needs more ranks than there are. ``also``: it fails as the entry says where the entry
    does not apply. ``case`` says what the case does, whatever the entry says of it.
    """

    name: str
    defect: Defect
    state: State
    detail: str = ""
    case: Does = "not run"

    @property
    def stale(self) -> bool:
        """Whether the file has to be changed."""
        return self.state in ("gone", "differs", "also")


def check_known(
    known: Known,
    findings_of: Callable[[CaseSpec], Sequence[Finding]],
    *,
    torch: str,
    backend: str,
    most_ranks: int = 8,
    lacks: Callable[[CaseSpec], str] = lambda _: "",
) -> Iterator[Checked]:
    """Runs the minimal case of each known defect by ``findings_of`` and compares.

    ``findings_of`` gives all findings of a case, known ones too; ``lacks`` says what a case needs
    of torch that this one has not. Those that other versions or backends have are run as well: a
    range that is too narrow is told, too.
    """
    for name, defect in known.defects.items():
        case = known.minimal(name)
        applies = defect.applies(torch=torch, backend=backend)
        if case.world_size > most_ranks:
            detail = f"it needs {ranks_in_words(case.world_size)}"
            yield Checked(name=name, defect=defect, state="skipped", detail=detail)
            continue
        if needs := lacks(case):
            detail = f"it needs {needs}"
            yield Checked(name=name, defect=defect, state="skipped", detail=detail)
            continue
        findings = findings_of(case)
        # A race shows now and then: one quiet run does not mean that it is gone.
        for _ in range(QUIET_RUNS - 1 if applies else 0):
            if findings:
                break
            findings = findings_of(case)
        # `explains` looks at no version: whether it applies here is
        # asked apart, to tell a range that is too narrow.
        shows = any(defect.explains(case, finding) for finding in findings)
        # Whether another entry explains it here: on releases without this defect the case may show
        # one that is older.
        others = {known.match(case, f, torch=torch, backend=backend) for f in findings}
        told = "; ".join(one_line(f"{f.key}: {f.message}", 300) for f in findings)
        state: State
        if shows and applies:
            state, detail = "shows", ""
        elif shows:
            state, detail = "also", _wider(defect, torch, backend)
        elif backend not in defect.seen:
            fails = f", and fails in another way here: {told}" if findings else ""
            state, detail = "skipped", f"seen on {', '.join(defect.seen)} alone{fails}"
        elif findings and not applies and None not in others:
            names = ", ".join(sorted(filter(None, others)))
            state, detail = "skipped", f"torch {torch} does not have it, but {names}"
        elif findings:
            state, detail = "differs", told
        elif applies:
            state, detail = "gone", _narrower(defect, torch, backend)
        else:
            state, detail = "skipped", f"torch {torch} does not have it, as the entry says"
        does: Does = "shows" if shows else "otherwise" if findings else "passes"
        yield Checked(name=name, defect=defect, state=state, detail=detail, case=does)


def _wider(defect: Defect, torch: str, backend: str) -> str:
    """What to write where an entry's range lacks a release that has the defect."""
    release = _release(torch)
    words = f'also shows on {release}: add it to "seen.{backend}"'
    if defect.gone is not None and Version(release) >= Version(defect.gone):
        words += f', and "gone": "{defect.gone}" is too early'
    return words


def _narrower(defect: Defect, torch: str, backend: str) -> str:
    """What to write where an entry's range has a release without the defect."""
    release = _release(torch)
    releases = [text for where, texts in defect.seen.items() if where == backend for text in texts]
    seen = sorted((Version(text), text) for text in releases)
    older = [text for version, text in seen if version <= Version(release)]
    newer = [text for version, text in seen if version > Version(release)]
    if newer and not older:
        return f"narrow the range to {newer[0]} and later"
    words = f'narrow the range to before {release} ("gone": "{release}")'
    return f"{words} or to {newer[0]} and later" if newer else f"{words} or remove the entry"


def _release(torch: str) -> str:
    return torch.partition("+")[0]
