"""The books of a session whose cases tests draw: as `Ledger` for a run, without drawing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop._events import (
    Counts,
    Emit,
    FindingDone,
    FindingMet,
    Found,
    Notice,
    RunFinished,
    RunStarted,
    Summary,
)
from fsdpfuzz.loop._examined import Examined
from fsdpfuzz.loop._properties import scope_now
from fsdpfuzz.loop._reduction import kept_raised
from fsdpfuzz.loop._session import Session
from fsdpfuzz.verdict import Finding


class Checks:
    """Counts what `Session.check` examines and books each finding once, and tells ``emit``.

    What `Session.check` raised is reduced and booked by `reduce`, `finish` ends the books.
    """

    def __init__(self, session: Session, emit: Emit) -> None:
        self._session = session
        self._emit = emit
        self._counts = Counts()
        self._found: dict[tuple[str, str | None], Found] = {}
        self._met: dict[str, tuple[int, float]] = {}
        """Of each new finding: which case showed it first, and when."""
        self._tests: dict[str, None] = {}
        self._began = time.monotonic()
        self._started = _started(session)
        # Not from what `Session.check` raises: a test fails once, and shows of all its cases the
        # last.
        session.watch = self._take
        session.on_harness_error(lambda error: emit(Notice(text=str(error), harness_error=True)))
        emit(self._started)

    def reduce(self, *, smaller: bool = True) -> tuple[tuple[Found, CaseSpec], ...]:
        """Keeps what was raised since the last call, each with its case.

        With ``smaller`` the cases are reduced before.
        """
        made = []
        for kept in kept_raised(self._session, smaller=smaller):
            found = self._found_in(kept.examined, kept.finding, kept.property_name, kept.path)
            examples, seconds = self._met.get(kept.first, (found.examples_to_find, found.seconds))
            found = replace(
                found,
                examples_to_find=examples,
                seconds=seconds,
                shrink_steps=kept.steps,
                shrunk=kept.steps > 0,
                **self._session.about(kept.examined.case, found.finding),
            )
            self._found[found.finding.key, None] = found
            self._emit(FindingDone(found=found))
            made.append((found, kept.examined.case))
        return tuple(made)

    def finish(self, *, interrupted: int | None = None) -> Summary:
        """All that was checked."""
        summary = Summary(
            started=replace(
                self._started, torch=self._session.torch, properties=tuple(self._tests)
            ),
            counts=replace(self._counts, skipped=self._session.passed_over.total()),
            seconds=time.monotonic() - self._began,
            pool_restarts=self._session.restarts,
            findings=tuple(self._found.values()),
            strict=self._session.settings.strict,
            interrupted=interrupted,
            silent_known=self._session.silent_known(),
            harness_errors=len(self._session.harness_errors),
            harness=tuple(map(str, self._session.harness_errors)),
        )
        self._emit(RunFinished(summary=summary))
        return summary

    def _take(self, examined: Examined, property_name: str) -> None:
        """Books a case; one that was judged before, and shrinking asks for again, counts once."""
        self._tests[property_name] = None
        if not examined.fresh:
            return
        self._counts = self._counts.plus(examined.verdict.status)
        restarts = self._session.restarts
        self._emit(examined.done(self._counts.examples, property_name, restarts))
        for finding in examined.verdict.findings:
            known = examined.known.get(finding.key)
            if known is None:
                self._met.setdefault(finding.key, (self._counts.examples, self._seconds))
            elif (finding.key, known) not in self._found:
                path = self._session.keep(examined, finding, property_name, known=known)
                found = self._found_in(examined, finding, property_name, path)
                self._found[finding.key, known] = replace(found, known=known)
                self._emit(FindingMet(found=self._found[finding.key, known]))

    def _found_in(
        self, examined: Examined, finding: Finding, property_name: str, path: Path
    ) -> Found:
        return Found(
            finding=finding,
            property_name=property_name,
            case=path,
            digest=examined.digest,
            examples_to_find=self._counts.examples,
            rate=examined.rates.get(finding.key),
            seconds=self._seconds,
        )

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began


def _started(session: Session) -> RunStarted:
    settings = session.settings
    return RunStarted(
        torch=session.torch,
        backend=settings.backend,
        world_sizes=scope_now().world_sizes,
        profile=settings.profile.name,
        seed=settings.seed,
        properties=(),
        max_examples=0,
        output=settings.folder,
    )
