"""A session: cases are run, judged, confirmed and kept; nothing runs twice."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fsdpfuzz.case import CaseSpec, Imported, digest
from fsdpfuzz.errors import ContractError
from fsdpfuzz.loop._confirm import Confirmed, Judged, confirm, is_starved
from fsdpfuzz.loop._examined import Examined, Outcome
from fsdpfuzz.loop._known import lacking, reason_to_skip
from fsdpfuzz.loop._ports import HarnessError, Ports, Sighting
from fsdpfuzz.loop._real import real_ports
from fsdpfuzz.loop._runs import Runs
from fsdpfuzz.loop._settings import SessionSettings
from fsdpfuzz.own import begins, is_permitted, permit, wraps_itself
from fsdpfuzz.reduce import alike
from fsdpfuzz.repro import plan_text
from fsdpfuzz.verdict import Finding, FindingError, Verdict, error_type
from fsdpfuzz.wire import Target

T = TypeVar("T")


class Session:
    """Joins pools, judge and archive.

    Pools start when their world size is first needed and live until `close`. Use it as a
    context manager.
    """

    def __init__(self, settings: SessionSettings, ports: Ports | None = None) -> None:
        self.settings = settings
        self._ports = ports or real_ports(settings)
        self._runs = Runs(settings, self._ports)
        self._cache: OrderedDict[str, Outcome] = OrderedDict()
        self._confirmed: set[str] = set()
        self._raised: dict[str, tuple[Examined, Finding, str]] = {}
        self._begun = ""
        """Digest of the case that the ranks are at, and that is on disk."""
        self._unsettled = False
        self.testing = "check"
        """The test that is under way, under whose name `check` keeps what it finds."""
        self.watch: Callable[[Examined, str], None] = lambda _examined, _name: None
        """Told of each case that `check` examined, before it raises."""
        self.passed_over: Counter[str] = Counter()
        """Why cases that tests drew were not run, as `skips` has it, and how many each time."""

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Whatever ended the block, the case that was under way is judged by nobody: it stays on
        # disk.
        if error is not None:
            self.abandon()
        self.close()

    def aim(self, target: Target | None) -> None:
        """Has ranks run this code of one's own from now on. Cases of other code may look alike."""
        if target == self.settings.target:
            return
        self.close()
        # A case names modules, not what they compute: with other code the same case is another one.
        self._cache.clear()
        self._confirmed.clear()
        self.settings = replace(self.settings, target=target)
        make_pool = (
            self._ports.make_pool if self._ports.aim is None else self._ports.aim(target, False)
        )
        self._ports = replace(self._ports, make_pool=make_pool)
        self._runs.renew(self._ports)

    def about(self, case: CaseSpec, finding: Finding) -> dict[str, Any]:
        """What else a `Found` says of somebody's own model: where it begins, and how it is wrapped.

        Empty for a model that was drawn, of which a script says all.
        """
        if not isinstance(case.model, Imported):
            return {}
        target, aim = self.settings.target, self._ports.aim
        return {
            "begins": begins(case, finding, target, aim and aim(target, True)),
            "plan": plan_text(case, self.settings.backend),
        }

    @property
    def restarts(self) -> int:
        """How often ranks were started again, over all world sizes."""
        return self._runs.restarts

    @property
    def torch(self) -> str:
        """The torch version of the ranks, as far as known."""
        return self._runs.torch

    @property
    def harness_errors(self) -> tuple[HarnessError, ...]:
        """What was the fuzzer's or the machine's fault so far."""
        return tuple(self._runs.harness_errors)

    def on_harness_error(self, tell: Callable[[HarnessError], None]) -> None:
        """Has ``tell`` called with each harness error from now on, when it is met."""
        self._runs.tell = tell

    def note_harness_error(self, case: CaseSpec, error: Exception, doing: str) -> str:
        """Books what went wrong with a case beside its runs, and gives it in one line."""
        return self._runs.note(case, error, doing)

    def is_cached(self, case: CaseSpec) -> bool:
        """Whether `examine` would answer without running the case."""
        return digest(case) in self._cache

    def begin(self, case: CaseSpec) -> None:
        """Has the ranks start on a case while the caller goes on; `examine` it next.

        A case that was judged before is not run. Raises what `examine` raises.
        """
        name = digest(case)
        if name not in self._cache:
            permit(case, self.settings.target)
            self._put_on_disk(case)
            self._runs.begin(case)
            self._begun = name

    def examine(self, case: CaseSpec, *, beside: bool = False) -> Examined:
        """Runs and judges a case; from memory if it was judged before.

        A finding whose key is new to the session is confirmed by running the case again. A
        failing case stays on disk as the one under way until `settle`, so that none is lost
        between its verdict and `keep`; with ``beside`` it stays there while this one runs.
        :class:`PoolError` if the ranks cannot be started.
        """
        name = digest(case)
        outcome = self._cache.get(name)
        if outcome is not None:
            self._cache.move_to_end(name)
            return outcome.examined(case, name, fresh=False)
        outcome = self._run(case, beside=beside)
        self._remember(name, outcome)
        return outcome.examined(case, name, fresh=True)

    def lacks(self, case: CaseSpec) -> str:
        """What a case needs that these ranks do not have; empty for one that they can run."""
        return lacking(case, self.settings.backend, self.settings.offers)

    def confirm(self, case: CaseSpec) -> Examined:
        """Runs a case several times, whatever is known of it, and remembers the outcome.

        What is on disk stays as it is.
        """
        name = digest(case)
        outcome = self._run(case, doubt=True, beside=True)
        self._remember(name, outcome)
        return outcome.examined(case, name, fresh=True)

    def covering(self, case: CaseSpec) -> tuple[str, ...]:
        """Ids of the known defects of which a case has here what they need."""
        return self._told(case, lambda: self._ports.known.covering(case, **self._here), ())

    def skips(self, case: CaseSpec) -> str | None:
        """Why a drawn case is not worth a run; None for one that is.

        One of which fsdpfuzz itself fails to say what is known ends as a harness error. In a strict
        session all are that this machine can run, and so are those that wrap a model as its own
        code does: there is no other way to try. See `fsdpfuzz.loop._known`.
        """
        strict = self.settings.strict or wraps_itself(case)
        backend, known = self.settings.backend, self._ports.known
        showing: tuple[str, ...] | None = ()
        if not strict:
            showing = self._told(case, lambda: known.showing(case, **self._here), None)
        if showing is None:
            return "harness error"
        reason = reason_to_skip(case, showing, backend, self.settings.offers)
        if reason is None or reason == "machine":
            return reason
        telling = self._ports.telling
        if telling is not None and telling(case, torch=self.torch, backend=backend):
            return None
        return None if strict else reason

    def passes_over(self, case: CaseSpec) -> bool:
        """Whether a case that a test drew `skips`; counts it if so."""
        reason = self.skips(case)
        if reason is not None:
            self.passed_over[reason] += 1
        return reason is not None

    def explained(self, examined: Examined) -> Examined:
        """The same with findings known that follow from a known defect that covers the case.

        For each defect some plainer cases are run that it does not cover: a finding that none
        of them shows depends on the defect.
        """
        known = dict(examined.known)
        for name in self.covering(examined.case):
            left = [f for f in examined.verdict.findings if f.key not in known]
            exits = self._ports.known.exits(examined.case, name) if left else ()
            outside = [self.examine(case, beside=True) for case in exits]
            for finding in left if outside else ():
                if not any(alike(finding, f) for other in outside for f in other.verdict.findings):
                    known[finding.key] = name
        return replace(examined, known=known)

    def check(self, case: CaseSpec, property_name: str | None = None) -> None:
        """Examines a case and raises the error type of its first new finding.

        This is what a test calls; without a name the finding is kept under ``testing``. The
        failing case is kept at once; the last one that raised each finding, to which Hypothesis
        shrank it, is given by `take_raised`.
        """
        property_name = property_name or self.testing
        examined = self.examine(case)
        if examined.news:
            examined = self.explained(examined)
        self.watch(examined, property_name)
        try:
            self._raise_news(examined, property_name)
        finally:
            self.settle()

    def _raise_news(self, examined: Examined, property_name: str) -> None:
        news = examined.verdict.findings if self.settings.strict else examined.news
        # One: Hypothesis tells failures apart by the type that an example raises, and shrinks each
        # type.
        for finding in news[:1]:
            # At once, though a smaller one may follow: a test that is killed while it shrinks loses
            # nothing.
            if finding.key not in self._raised:
                self.keep(examined, finding, property_name)
            self._raised[finding.key] = (examined, finding, property_name)
            raise self._error(examined, finding)

    def take_raised(self) -> list[tuple[Examined, Finding, str]]:
        """Case, finding and property of what `check` raised last of each key, once."""
        raised, self._raised = list(self._raised.values()), {}
        return raised

    def keep(
        self,
        examined: Examined,
        finding: Finding,
        property_name: str,
        shrink_steps: int = 0,
        *,
        known: str | None = None,
    ) -> Path:
        """Puts a failing case into the folder of this run; its file, one for each finding."""
        rate = examined.rates.get(finding.key)
        return self._ports.archive.keep(
            Sighting(
                case=examined.case,
                finding=finding,
                property_name=property_name,
                backend=self.settings.backend,
                torch=finding.versus if finding.change == "fixed" else self.torch,
                seed=self.settings.seed,
                shrink_steps=shrink_steps,
                rate=str(rate) if rate else "",
                known=known,
                unconfirmed=finding in examined.unconfirmed,
            )
        )

    def drop(self, path: Path) -> None:
        """Removes a kept case that another one stands for."""
        self._ports.archive.drop(path)

    @property
    def first(self) -> tuple[CaseSpec, ...]:
        """What a run begins with, as far as this machine can run it."""
        return tuple(case for case in self._ports.first if self.skips(case) != "machine")

    def settle(self) -> None:
        """What was to be kept of the case that was examined last is kept."""
        if self._unsettled:
            self._unsettled = False
            self._ports.archive.finish()

    def pending(self) -> list[CaseSpec]:
        """The cases at which earlier runs were killed, but for those of code that is not named."""
        own = self.settings.target
        return [case for case in self._ports.archive.pending() if is_permitted(case, own)]

    def silent_known(self) -> tuple[str, ...]:
        """The known findings that should show on this machine and did not in this session."""
        return self._ports.known.silent(torch=self.torch, backend=self.settings.backend)

    def abandon(self) -> None:
        """Ends all ranks in the middle of a case, which stays on disk: `pending` gives it again."""
        self._unsettled = False
        self.close()

    def close(self) -> None:
        """Ends all ranks. The session may go on; pools start again when needed."""
        self.settle()
        self._begun = ""
        self._runs.close()

    def _error(self, examined: Examined, finding: Finding) -> FindingError:
        error = error_type(finding.key)(finding)
        rate = examined.rates.get(finding.key)
        if rate:
            error.add_note(f"not each time: {rate} runs of this case")
        return error

    def _run(self, case: CaseSpec, *, doubt: bool = False, beside: bool = False) -> Outcome:
        permit(case, self.settings.target)
        begun, self._begun = self._begun, ""
        if not beside and begun != digest(case):
            self._put_on_disk(case)
        observation, verdict = self._runs.judged(case)
        if not verdict.findings:
            # A clean case's observation is large and nobody asks for it again.
            outcome = Outcome(verdict)
        else:
            outcome = self._weighed(case, (observation, verdict), doubt=doubt)
        if not beside:
            self._unsettled = True
            if not (outcome.verdict.findings or outcome.unconfirmed):
                self.settle()
        return outcome

    def _put_on_disk(self, case: CaseSpec) -> None:
        self.settle()
        self._ports.archive.begin(case)

    def _weighed(self, case: CaseSpec, first: Judged, *, doubt: bool) -> Outcome:
        confirmed = Confirmed(verdict=first[1], observation=first[0])
        known = self._known(case, first[1])
        if (
            doubt
            or is_starved(first[0])
            or any(f.key not in known and f.key not in self._confirmed for f in first[1].findings)
        ):
            # On fresh ranks: what an earlier case left behind in them must not count.
            self._runs.pool(case.world_size).close()
            confirmed = confirm(
                first,
                lambda patience: self._runs.judged(case, patience=patience),
                reruns=self.settings.reruns,
                flaky_runs=self.settings.flaky_runs,
            )
            known = self._known(case, confirmed.verdict)
            self._confirmed.update(
                f.key for f in confirmed.verdict.findings if f.key not in confirmed.rates
            )
        return Outcome(
            confirmed.verdict,
            known,
            confirmed.rates,
            confirmed.observation,
            tuple(f for f in confirmed.unconfirmed if self._entry(case, f) is None),
        )

    def _known(self, case: CaseSpec, verdict: Verdict) -> dict[str, str]:
        known: dict[str, str] = {}
        for finding in verdict.findings:
            name = self._entry(case, finding)
            if name is not None:
                known[finding.key] = name
        return known

    def _entry(self, case: CaseSpec, finding: Finding) -> str | None:
        """The known defect that explains a finding."""
        known = self._ports.known
        # What cannot be told is new, so that no finding is lost by it.
        return self._told(case, lambda: known.match(case, finding, **self._here), None)

    @property
    def _here(self) -> dict[str, str]:
        """Where known defects are asked for."""
        return {"torch": self.torch, "backend": self.settings.backend}

    def _told(self, case: CaseSpec, ask: Callable[[], T], otherwise: T) -> T:
        """What is known of a case; where fsdpfuzz fails to say it, a harness error is booked."""
        try:
            return ask()
        except ContractError as error:
            self._runs.note(case, error, "what is known of the case")
            return otherwise

    def _remember(self, name: str, outcome: Outcome) -> None:
        self._cache[name] = outcome
        self._cache.move_to_end(name)
        # The least recently asked for goes first, and with it observations of findings, which are
        # large.
        while len(self._cache) > self.settings.cache_size:
            self._cache.popitem(last=False)
