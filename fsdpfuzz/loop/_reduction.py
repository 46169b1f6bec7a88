"""The reduction of one finding in a session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdpfuzz.case import CaseSpec, encode
from fsdpfuzz.loop._events import Emit, Shrinking
from fsdpfuzz.loop._examined import Examined
from fsdpfuzz.loop._session import Session
from fsdpfuzz.reduce import Ablation, ablate, alike, reduce
from fsdpfuzz.verdict import Finding, Verdict


class Reduction:
    """Makes a finding's case smaller; ``examined`` and ``finding`` are the smallest so far.

    It keeps off the regions of known defects that the case is not in, and off what this machine
    lacks: what shows there may be one of these, or the lack. On disk the case that it began with
    stays the one under way.
    """

    def __init__(self, session: Session, examined: Examined, finding: Finding, emit: Emit) -> None:
        self.examined = examined
        self.finding = finding
        self.steps = 0
        """How many smaller cases showed it."""
        self._session = session
        self._emit = emit
        # Those of the case itself stay open: what is new in it was told apart from them before.
        self._regions = set(session.covering(examined.case))
        self._lacks = bool(session.lacks(examined.case))
        self._tries = 0

    def run(self) -> None:
        """Reduces, and confirms the smallest case on fresh ranks."""
        first, finding = self.examined, self.finding
        profile = self._session.settings.profile
        reduce(
            first.case,
            finding,
            self._shown,
            max_runs=profile.shrink_tries,
            seconds=profile.shrink_seconds,
        )
        if self.steps:
            again = self._session.confirm(self.examined.case)
            shown = _same(finding, again)
            if shown is None:
                # It showed by chance, as a race does; the case that it was met in was confirmed.
                self.examined, self.finding, self.steps = first, finding, 0
            else:
                self.examined, self.finding = again, shown

    def ablation(self, most_ranks: int) -> Ablation:
        """Which options the smallest case needs for the finding."""
        end = time.monotonic() + self._session.settings.profile.ablation_seconds

        def examine(case: CaseSpec) -> Verdict | None:
            if time.monotonic() >= end:
                return None
            lacks = self._session.lacks(case)
            if lacks:
                return Verdict(status="rejected", reason=lacks)
            return self._session.examine(case, beside=True).verdict

        return ablate(self.examined.case, self.finding, examine, max_ranks=most_ranks)

    def _shown(self, case: CaseSpec) -> Finding | None:
        self._tries += 1
        shown = None
        # A smaller case in a region of its own may show the known defect in place of this finding.
        off = self._session.lacks(case) and not self._lacks
        if not off and self._regions.issuperset(self._session.covering(case)):
            examined = self._session.examine(case, beside=True)
            shown = _same(self.finding, examined)
            if shown is not None:
                self.examined, self.finding = examined, shown
                self.steps += 1
        self._emit(
            Shrinking(
                key=self.finding.key,
                tries=self._tries,
                bytes=len(encode(self.examined.case)),
                restarts=self._session.restarts,
            )
        )
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What `Session.check` raised, as it was kept."""

    path: Path
    first: str
    """The key of the finding as it was raised; reduced, it may say less."""
    examined: Examined
    finding: Finding
    property_name: str
    steps: int


def kept_raised(session: Session, *, smaller: bool = True) -> Iterator[Kept]:
    """Keeps what `Session.check` raised last of each finding, one after the other.

    With ``smaller`` each case is reduced: where Hypothesis ends, parts of a case are left that
    it cannot take out one by one. All of them are on disk before the first is reduced.
    """
    raised = [
        # On disk before anything is reduced: a run that is killed loses no finding.
        (session.keep(examined, finding, name), examined, finding, name)
        for examined, finding, name in session.take_raised()
    ]
    for path, examined, finding, property_name in raised:
        reduction = Reduction(session, examined, finding, lambda _: None)
        if smaller and finding.key not in examined.rates:
            reduction.run()
        if reduction.steps:
            kept = session.keep(
                reduction.examined, reduction.finding, property_name, reduction.steps
            )
            if kept != path:
                # After the smaller one is on disk.
                session.drop(path)
            path = kept
        session.settle()
        yield Kept(
            path=path,
            first=finding.key,
            examined=reduction.examined,
            finding=reduction.finding,
            property_name=property_name,
            steps=reduction.steps,
        )


def keep_raised(session: Session, *, smaller: bool = True) -> list[Path]:
    """The files of `kept_raised`."""
    return list(dict.fromkeys(kept.path for kept in kept_raised(session, smaller=smaller)))


def _same(finding: Finding, examined: Examined) -> Finding | None:
    """The finding in another case: new, and steady; one with the same key before one alike."""
    news = [found for found in examined.news if found.key not in examined.rates]
    same = [found for found in news if found.key == finding.key]
    return next(iter(same or [found for found in news if alike(finding, found)]), None)
