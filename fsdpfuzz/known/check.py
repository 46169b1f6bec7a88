"""Whether the known defects are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.errors import one_line
from fsdpfuzz.known.defect import Defect
from fsdpfuzz.known.files import Known
from fsdpfuzz.verdict import Finding


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the minimal case of a known defect does today.

    ``shows``: it fails as the entry says. ``gone``: it does not fail any more. ``differs``:
    it fails, but in a way that the entry does not explain. ``skipped``: the entry is about
    other versions or backends and it does not fail, or the case needs more ranks than there
    are. ``also``: it fails as the entry says where the entry does not apply.
    """

    name: str
    defect: Defect
    state: Literal["shows", "gone", "differs", "skipped", "also"]
    detail: str = ""

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
) -> Iterator[Checked]:
    """Runs the minimal case of each known defect by ``findings_of`` and compares.

    ``findings_of`` gives all findings of a case, known ones too. Those that other versions
    have are run as well on a backend that has them: a wrong range is told, too.
    """
    for name, defect in known.defects.items():
        case = known.minimal(name)
        applies = defect.applies(torch=torch, backend=backend)
        if backend not in defect.seen:
            detail = f"seen on {', '.join(defect.seen)} alone"
            yield Checked(name=name, defect=defect, state="skipped", detail=detail)
            continue
        if case.world_size > most_ranks:
            detail = f"it needs {case.world_size} ranks"
            yield Checked(name=name, defect=defect, state="skipped", detail=detail)
            continue
        findings = findings_of(case)
        shows = any(defect.explains(case, finding) for finding in findings)
        told = "; ".join(one_line(f"{f.key}: {f.message}", 300) for f in findings)
        if shows and applies:
            yield Checked(name=name, defect=defect, state="shows")
        elif shows:
            detail = f"torch {torch} has it too: widen what was seen, or when it was gone"
            yield Checked(name=name, defect=defect, state="also", detail=detail)
        elif findings:
            yield Checked(name=name, defect=defect, state="differs", detail=told)
        elif applies:
            release = torch.partition("+")[0]
            detail = f'narrow the entry ("gone": "{release}") or remove it'
            yield Checked(name=name, defect=defect, state="gone", detail=detail)
        else:
            detail = f"torch {torch} does not have it, as the entry says"
            yield Checked(name=name, defect=defect, state="skipped", detail=detail)
