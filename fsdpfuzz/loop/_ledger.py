"""What a run has met so far: counts, findings, causes, digests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.errors import PoolError
from fsdpfuzz.loop._causes import Cause, by_precedence, outdoes, same_cause, shows
from fsdpfuzz.loop._events import (
    Also,
    Counts,
    Emit,
    FindingDone,
    FindingMet,
    Found,
    Notice,
    Script,
    Scripting,
)
from fsdpfuzz.loop._examined import Examined
from fsdpfuzz.loop._held import signals_held
from fsdpfuzz.loop._peers import Alone, Peers
from fsdpfuzz.loop._reduction import Reduction
from fsdpfuzz.loop._session import Session
from fsdpfuzz.reduce import MOST_RANKS, Ablation
from fsdpfuzz.verdict import Finding, Verdict

WriteScript = Callable[[Session, Found, CaseSpec, Ablation | None], Script]


@dataclass(slots=True)
class _Waiting:
    """A new finding that is booked and not yet reduced."""

    met: Found
    examined: Examined
    compared: int = 0
    """So many of the causes are known to be others."""


class Ledger:
    """Books every generated case and every finding of a run, and tells ``emit``.

    One case is under way in the ranks while the next is drawn; a run that ends in between leaves
    it on disk. A new finding is told of as soon as its case is judged, and then reduced; each
    pair of its key and the known defect that explains it is booked once, and further keys of the
    same cause with it. Where ``peers`` reduce, it waits for its turn while drawing goes on.
    """

    def __init__(
        self,
        session: Session,
        emit: Emit,
        script: WriteScript | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.session = session
        self.emit = emit
        self.counts = Counts()
        self.seen: set[str] = set()
        """Digests of the generated cases."""
        self.digests: TextIO | None = None
        self._script = script
        self._peers: Peers = Alone() if peers is None else peers
        self._found: dict[tuple[str, str | None], Found] = {}
        self._causes: list[Cause] = []
        self._keys: set[str] = set()
        """Keys of new findings that were booked, on their own or with another's cause."""
        self._waiting: list[_Waiting] = []
        self._elsewhere: set[str] = set()
        """What other jobs have met before."""
        self._under_way: tuple[CaseSpec, str, float] | None = None
        self._began = time.monotonic()
        self._doubtful: dict[str, Found] = {}
        """What showed once and not again, by key."""
        session.on_harness_error(lambda error: emit(Notice(text=str(error), harness_error=True)))

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def found(self) -> tuple[Found, ...]:
        """All findings, in the order in which they were met."""
        return tuple(found for found in self._found.values() if not found.unconfirmed)

    @property
    def unconfirmed(self) -> tuple[Found, ...]:
        """What showed once and not again, and findings that their own scripts deny."""
        denied = [found for found in self._found.values() if found.unconfirmed]
        met = {found.finding.key for found in self.found}
        return (*denied, *(found for key, found in self._doubtful.items() if key not in met))

    def begin(self, case: CaseSpec, property_name: str) -> bool:
        """Has the ranks start on a drawn case, once they are through with the one before.

        False for a case that is not worth a run: see `Session.skips`.
        """
        # Before the ranks are waited for: they are still at the case before, and need not stand
        # idle for one that is not run.
        if self.session.skips(case) is not None:
            self.counts = replace(self.counts, skipped=self.counts.skipped + 1)
            return False
        self.finish()
        self.session.begin(case)
        self._under_way = (case, property_name, time.monotonic())
        return True

    def finish(self) -> None:
        """Waits for the case that is under way, if there is one, and books it."""
        if self._under_way is None:
            return
        (case, property_name, began), self._under_way = self._under_way, None
        examined = self.session.examine(case)
        self._count(examined, property_name, time.monotonic() - began)
        self._reduce_waiting(wait=False)

    def finish_all(self) -> None:
        """`finish`, and all that waits for its turn is reduced."""
        self.finish()
        self._reduce_waiting(wait=True)

    def _count(self, examined: Examined, property_name: str, seconds: float) -> None:
        self.counts = self.counts.plus(examined.verdict.status)
        if self.digests is not None:
            self.digests.write(examined.digest + "\n")
        # Told with all that is known of it, also what only plainer cases tell.
        examined = self._explained(examined)
        restarts = self.session.restarts
        self.emit(examined.done(self.counts.examples, property_name, restarts, seconds))
        self._meet(examined, property_name)

    def meet(self, examined: Examined, property_name: str) -> None:
        """Books the findings of a case that are met for the first time, and reduces new ones."""
        self._meet(self._explained(examined), property_name)

    def _explained(self, examined: Examined) -> Examined:
        return self.session.explained(examined) if examined.news else examined

    def _meet(self, examined: Examined, property_name: str) -> None:
        for finding in examined.verdict.findings:
            known = examined.known.get(finding.key)
            if known is None or (finding.key, known) in self._found:
                continue
            if self._is_first(f"{known}: {finding.key}"):
                self._book(examined, finding, property_name, known)
        for finding in examined.unconfirmed:
            if finding.key in self._keys or finding.key in self._doubtful:
                continue
            if self._is_first(f"unconfirmed: {finding.key}"):
                self._doubt(examined, finding, property_name)
        for finding in examined.news:
            # Not reduced: where it does not show each time, a smaller case that passes says
            # nothing.
            if finding.key in examined.rates and finding.key not in self._keys:
                self._keys.add(finding.key)
                if self._is_first(finding.key):
                    found = self._book(examined, finding, property_name, None)
                    self._finished(found, examined.case, None)
        for finding in by_precedence(f for f in examined.news if f.key not in examined.rates):
            if finding.key not in self._keys:
                self._new(examined, finding, property_name)
        self.session.settle()

    def _is_first(self, name: str) -> bool:
        if name in self._elsewhere:
            return False
        if not self._peers.first(name):
            self._elsewhere.add(name)
            return False
        return True

    def _new(self, examined: Examined, finding: Finding, property_name: str) -> None:
        """Books a finding with a new key: with a cause that shows beside it, or on its own."""
        self._causes += self._peers.news()
        cause = self._cause_beside(examined, finding)
        if cause is not None:
            if not cause.has(finding) and self._is_first(finding.key):
                with signals_held():
                    self.session.keep(examined, finding, property_name, known=None)
            self._add_key(cause, finding.key)
            return
        self._keys.add(finding.key)
        if self._is_first(finding.key):
            # Told of before anything else is run for it.
            self._waiting.append(
                _Waiting(self._book(examined, finding, property_name, None), examined)
            )
            self._reduce_waiting(wait=False)

    def _reduce_waiting(self, *, wait: bool) -> None:
        """Reduces what waits, but for what has a cause that was met before."""
        while self._waiting:
            self._causes += self._peers.news()
            first = self._waiting[0]
            cause = self._like_another(first)
            if cause is not None:
                self._waiting.remove(first)
                self._merge(first.met, cause, kept=not cause.has(first.met.finding))
            elif self._peers.turn(wait=wait):
                self._waiting.remove(first)
                self._reduced(first.met, first.examined)
            elif not wait:
                return

    def _cause_beside(self, examined: Examined, finding: Finding) -> Cause | None:
        """A cause that shows in this case, too, and the finding in that cause's smallest case."""
        return next(
            (
                cause
                for cause in self._causes
                if cause.shown_in(examined.news, finding.api)
                and shows(cause.shows, finding)
                and not outdoes(finding, cause.found.finding)
            ),
            None,
        )

    def _like_another(self, waiting: _Waiting) -> Cause | None:
        """The cause that a finding has in common with one that was reduced."""
        examined, finding = waiting.examined, waiting.met.finding
        causes, waiting.compared = self._causes[waiting.compared :], len(self._causes)
        return self._cause_beside(examined, finding) or next(
            (
                cause
                for cause in causes
                if not outdoes(finding, cause.found.finding)
                and same_cause(cause, examined.case, finding, self._run)
            ),
            None,
        )

    def _run(self, case: CaseSpec) -> Verdict:
        return self.session.examine(case, beside=True).verdict

    def _add_key(self, cause: Cause, *keys: str) -> None:
        for key in keys:
            own = cause.found.finding.key
            self._keys.add(key)
            if key != own and key not in cause.found.also:
                cause.found = replace(cause.found, also=(*cause.found.also, key))
                if (own, None) in self._found:
                    self._found[own, None] = cause.found
                self.emit(Also(found=cause.found, key=key))

    def _merge(self, met: Found, cause: Cause, *keys: str, kept: bool = False) -> None:
        """Books a finding of its own as a further key of a cause; its case may be kept."""
        with signals_held():
            del self._found[met.finding.key, None]
            if met.case != cause.found.case and not kept:
                self.session.drop(met.case)
            self._add_key(cause, met.finding.key, *keys)

    def _take_over(self, cause: Cause, other: Cause) -> None:
        """Books what was told by a finding of ``other`` as a further key of ``cause``."""
        old = other.found
        with signals_held():
            self._causes.remove(other)
            if self._found.pop((old.finding.key, None), None) is not None:
                self.session.drop(old.case)
                sooner = replace(
                    cause.found, examples_to_find=old.examples_to_find, seconds=old.seconds
                )
                cause.found = self._found[cause.found.finding.key, None] = sooner
            self._add_key(cause, old.finding.key, *old.also)

    def _doubt(self, examined: Examined, finding: Finding, property_name: str) -> None:
        """Keeps what showed once and not again; it is no finding."""
        with signals_held():
            found = self._seen_in(examined, finding, property_name, None)
            self._doubtful[finding.key] = found
        self.emit(Notice(text=f"unconfirmed, {found.rate}: {finding.key}; kept: {found.case}"))

    def _book(
        self, examined: Examined, finding: Finding, property_name: str, known: str | None
    ) -> Found:
        with signals_held():
            found = self._seen_in(examined, finding, property_name, known)
            self._found[finding.key, known] = found
        self.emit(FindingMet(found=found))
        return found

    def _seen_in(
        self, examined: Examined, finding: Finding, property_name: str, known: str | None
    ) -> Found:
        return Found(
            finding=finding,
            property_name=property_name,
            case=self.session.keep(examined, finding, property_name, known=known),
            digest=examined.digest,
            examples_to_find=self.counts.examples,
            known=known,
            rate=examined.rates.get(finding.key),
            seconds=self.seconds,
        )

    def _reduced(self, met: Found, examined: Examined) -> None:
        """Reduces a new finding, and finds out what it needs; it is this run's turn."""
        reduction = Reduction(self.session, examined, met.finding, self.emit)
        try:
            reduction.run()
        # What was reduced so far is booked, even if there is no time for the rest.
        except (KeyboardInterrupt, PoolError):
            self._replaced(met, reduction)
            raise
        left = reduction.examined.verdict.findings
        other = self._shown(left, reduction.finding.api)
        if other is not None and not outdoes(reduction.finding, other.found.finding):
            self._merge(met, other, reduction.finding.key)
            self._peers.reduced(None)
            return
        found = self._replaced(met, reduction)
        cause = Cause(found, reduction.examined.case, left, Ablation(complete=False))
        self._causes.append(cause)
        if other is not None:
            self._take_over(cause, other)
        cause.ablation = reduction.ablation(self._most_ranks())
        while not self._peers.reduced(cause):
            self._causes += self._peers.news()
            other = self._shown(left, reduction.finding.api, but=cause)
            if other is not None and outdoes(cause.found.finding, other.found.finding):
                self._take_over(cause, other)
            elif other is not None:
                # Another job was sooner.
                self._causes.remove(cause)
                self._merge(cause.found, other, *cause.found.also)
                self._peers.reduced(None)
                return
        cause.found = self._finished(cause.found, cause.case, cause.ablation)

    def _shown(
        self, findings: tuple[Finding, ...], api: str, but: Cause | None = None
    ) -> Cause | None:
        """A cause that shows among the findings of a reduced case, which is under ``api``."""
        others = (cause for cause in self._causes if cause is not but)
        return next((cause for cause in others if cause.shown_in(findings, api)), None)

    def _smallest(self, found: Found, reduction: Reduction) -> Found:
        """The finding with the smallest case that shows it, which is kept."""
        if not reduction.steps:
            return found
        examined, finding = reduction.examined, reduction.finding
        kept = self.session.keep(examined, finding, found.property_name, reduction.steps)
        # The smaller one is on disk by now: a run that is killed in between has both, not none.
        if kept != found.case:
            self.session.drop(found.case)
        return replace(
            found,
            finding=finding,
            case=kept,
            digest=examined.digest,
            rate=examined.rates.get(finding.key),
            shrink_steps=reduction.steps,
            shrunk=True,
        )

    def _replaced(self, old: Found, reduction: Reduction) -> Found:
        """Books a finding anew with its smallest case; its key may say less than before."""
        with signals_held():
            return self._instead(old, self._smallest(old, reduction))

    def _instead(self, old: Found, new: Found) -> Found:
        if new.finding.key != old.finding.key:
            new = replace(new, also=(*new.also, old.finding.key))
        self._keys.add(new.finding.key)
        # In its place, not at the end: findings are listed in the order in which they were met.
        self._found = {
            (new.finding.key, None) if key == (old.finding.key, None) else key: (
                new if key == (old.finding.key, None) else value
            )
            for key, value in self._found.items()
        }
        return new

    def _most_ranks(self) -> int:
        if self.session.settings.backend == "gloo":
            return MOST_RANKS
        from fsdpfuzz.pool import probe_machine

        return min(MOST_RANKS, probe_machine(self.session.settings.python).gpus)

    def _finished(self, found: Found, case: CaseSpec, ablation: Ablation | None) -> Found:
        key = found.finding.key
        found = replace(found, **self.session.about(case, found.finding))
        if self._script is not None:
            self.emit(Scripting(key=key))
            found = replace(found, script=self._script(self.session, found, case, ablation))
        self._found[key, found.known] = found
        self.emit(FindingDone(found=found))
        return found
