"""What a run has met so far: counts, findings, digests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from fsdpfuzz.errors import ContractError
from fsdpfuzz.loop._events import (
    CaseDone,
    Counts,
    Event,
    FindingDone,
    FindingMet,
    Found,
    Script,
    Scripting,
)
from fsdpfuzz.loop._session import Examined, Session

Emit = Callable[[Event], None]
WriteScript = Callable[[Session, Found], Script]


class Ledger:
    """Books every generated case and every finding of a run, and tells ``emit``.

    Each pair of a finding's key and the known entry that explains it is booked once.
    """

    def __init__(self, session: Session, emit: Emit, script: WriteScript | None = None) -> None:
        self.session = session
        self.emit = emit
        self.counts = Counts()
        self.seen: set[str] = set()
        """Digests of the generated cases."""
        self.done: set[str] = set()
        """Keys that are shrunk or will not be."""
        self.digests: TextIO | None = None
        self._script = script
        self._found: dict[tuple[str, str | None], Found] = {}
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def found(self) -> tuple[Found, ...]:
        """All findings, in the order in which they were met."""
        return tuple(self._found.values())

    @property
    def new_keys(self) -> set[str]:
        """Keys of the findings that no known entry explains."""
        return {key for key, known in self._found if known is None}

    def count(self, examined: Examined, property_name: str, seconds: float) -> None:
        """Books a generated case and its findings."""
        status, counts = examined.verdict.status, self.counts
        self.counts = Counts(
            examples=counts.examples + 1,
            passed=counts.passed + (status == "passed"),
            rejected=counts.rejected + (status == "rejected"),
            vacuous=counts.vacuous + (status == "vacuous"),
        )
        if self.digests is not None:
            self.digests.write(examined.digest + "\n")
        self.emit(
            CaseDone(
                index=self.counts.examples,
                property_name=property_name,
                digest=examined.digest,
                case=examined.case,
                status=status,
                seconds=seconds,
                restarts=self.session.restarts,
                known=tuple(sorted(set(examined.known.values()))),
            )
        )
        self.meet(examined, property_name)

    def meet(self, examined: Examined, property_name: str) -> None:
        """Books the findings of a case that are met for the first time."""
        for finding in examined.verdict.findings:
            known = examined.known.get(finding.key)
            if (finding.key, known) in self._found:
                continue
            found = Found(
                finding=finding,
                property_name=property_name,
                case=self.session.keep(examined, finding, property_name),
                digest=examined.digest,
                examples_to_find=self.counts.examples,
                known=known,
                rate=examined.rates.get(finding.key),
                seconds=self.seconds,
            )
            self._found[finding.key, known] = found
            self.emit(FindingMet(found=found))
        self.session.settle()

    def shrunk(self, key: str, examined: Examined, property_name: str, steps: int) -> None:
        """Books the minimal case of a finding and ends it; how it was met stays otherwise."""
        found = self._found.get((key, None))
        if found is None:
            raise ContractError(f"{key} was shrunk but never met")
        for finding in examined.news:
            if finding.key == key:
                found = replace(
                    found,
                    finding=finding,
                    case=self.session.keep(examined, finding, property_name, steps),
                    digest=examined.digest,
                    rate=examined.rates.get(key),
                    shrink_steps=steps,
                    shrunk=True,
                )
        self.session.settle()
        self._finish(found)

    def finish_rest(self) -> None:
        """Ends the new findings that were not shrunk."""
        for found in self.found:
            if found.known is None and found.finding.key not in self.done:
                self._finish(found)

    def _finish(self, found: Found) -> None:
        key = found.finding.key
        self.done.add(key)
        self._found[key, found.known] = found
        if self._script is not None:
            self.emit(Scripting(key=key))
            found = replace(found, script=self._script(self.session, found))
            self._found[key, found.known] = found
        self.emit(FindingDone(found=found))
