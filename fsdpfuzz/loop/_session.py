"""A session: cases are run, judged, confirmed and kept; nothing runs twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from fsdpfuzz.loop._confirm import Confirmed, Judged, confirm
from fsdpfuzz.loop._events import Rate
from fsdpfuzz.loop._ports import PoolLike, Ports, Sighting
from fsdpfuzz.loop._real import real_ports
from fsdpfuzz.loop._settings import SessionSettings
from fsdpfuzz.observations import Observation
from fsdpfuzz.spec import CaseSpec, digest
from fsdpfuzz.verdict import Finding, FindingError, Verdict, error_type


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the cache keeps of a case. Observations are kept for findings only."""

    verdict: Verdict
    known: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    observation: Observation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A case with its verdict.

    ``known`` maps a finding's key to the entry that explains it, ``rates`` to how often it
    failed where it does not fail each time. ``observation`` is None for a clean case that
    was judged before.
    """

    case: CaseSpec
    digest: str
    verdict: Verdict
    known: Mapping[str, str]
    rates: Mapping[str, Rate]
    observation: Observation | None
    fresh: bool
    """Whether the case ran now; False for one judged before."""

    @property
    def news(self) -> tuple[Finding, ...]:
        """The findings that no known entry explains."""
        return tuple(f for f in self.verdict.findings if f.key not in self.known)


class Session:
    """Joins pools, judge and archive.

    Pools start when their world size is first needed and live until `close`. Use it as a
    context manager.
    """

    def __init__(self, settings: SessionSettings, ports: Ports | None = None) -> None:
        self.settings = settings
        self._ports = ports or real_ports(settings)
        self._pools: dict[int, PoolLike] = {}
        self._closed_restarts = 0
        self._cache: OrderedDict[str, _Outcome] = OrderedDict()
        self._confirmed: set[str] = set()
        self._raised: dict[str, tuple[Examined, Finding, str]] = {}
        self._torch = settings.torch
        self._begun = ""
        """Digest of the case that the ranks are at, and that is on disk."""
        self._unsettled = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def restarts(self) -> int:
        """How often ranks were started again, over all world sizes."""
        return self._closed_restarts + sum(pool.restarts for pool in self._pools.values())

    @property
    def torch(self) -> str:
        """The torch version of the ranks, as far as known."""
        return self._torch

    def is_cached(self, case: CaseSpec) -> bool:
        """Whether `examine` would answer without running the case."""
        return digest(case) in self._cache

    def begin(self, case: CaseSpec) -> None:
        """Has the ranks start on a case while the caller goes on; `examine` it next.

        A case that was judged before is not run. Raises what `examine` raises.
        """
        name = digest(case)
        if name not in self._cache:
            self._put_on_disk(case)
            self._pool(case.world_size).begin(case)
            self._begun = name

    def examine(self, case: CaseSpec) -> Examined:
        """Runs and judges a case; from memory if it was judged before.

        A finding whose key is new to the session is confirmed by running the case again. A
        failing case stays on disk as the one under way until `settle`, so that none is lost
        between its verdict and `keep`.
        :class:`PoolError` if the ranks cannot be started.
        """
        name = digest(case)
        outcome = self._cache.get(name)
        if outcome is not None:
            self._cache.move_to_end(name)
            return _examined(case, name, outcome, fresh=False)
        outcome = self._run(case)
        self._remember(name, outcome)
        return _examined(case, name, outcome, fresh=True)

    def confirm(self, case: CaseSpec) -> Examined:
        """Runs a case several times, whatever is known of it, and remembers the outcome."""
        name = digest(case)
        outcome = self._run(case, doubt=True)
        self._remember(name, outcome)
        return _examined(case, name, outcome, fresh=True)

    def check(self, case: CaseSpec, property_name: str) -> None:
        """Examines a case and raises the error type of its first new finding.

        This is what a pytest property calls. The failing case is kept at once, and the last
        one that Hypothesis shrank to by `keep_shrunk`.
        """
        examined = self.examine(case)
        try:
            self._raise_news(examined, property_name)
        finally:
            self.settle()

    def _raise_news(self, examined: Examined, property_name: str) -> None:
        news = examined.verdict.findings if self.settings.strict else examined.news
        for finding in news[:1]:
            if finding.key not in self._raised:
                self.keep(examined, finding, property_name)
            self._raised[finding.key] = (examined, finding, property_name)
            raise self._error(examined, finding)

    def keep_shrunk(self) -> list[Path]:
        """Keeps the case that last raised each finding; Hypothesis ends on the minimal one."""
        kept = [
            self.keep(examined, finding, property_name)
            for examined, finding, property_name in self._raised.values()
        ]
        self._raised.clear()
        return kept

    def keep(
        self, examined: Examined, finding: Finding, property_name: str, shrink_steps: int = 0
    ) -> Path:
        """Puts a failing case into the corpus of the output folder; its file."""
        rate = examined.rates.get(finding.key)
        return self._ports.archive.keep(
            Sighting(
                case=examined.case,
                finding=finding,
                property_name=property_name,
                backend=self.settings.backend,
                torch=self._torch,
                seed=self.settings.seed,
                shrink_steps=shrink_steps,
                rate=str(rate) if rate else "",
            )
        )

    def settle(self) -> None:
        """What was to be kept of the case that was examined last is kept."""
        if self._unsettled:
            self._unsettled = False
            self._ports.archive.finish()

    def pending(self) -> list[CaseSpec]:
        """The cases at which earlier runs were killed."""
        return self._ports.archive.pending()

    def silent_known(self) -> tuple[str, ...]:
        """The known findings that should show on this machine and did not in this session."""
        return self._ports.known.silent(torch=self._torch, backend=self.settings.backend)

    def close(self) -> None:
        """Ends all ranks. The session may go on; pools start again when needed."""
        self.settle()
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            self._closed_restarts += pool.restarts
            pool.close()

    def _error(self, examined: Examined, finding: Finding) -> FindingError:
        error = error_type(finding.key)(finding)
        rate = examined.rates.get(finding.key)
        if rate:
            error.add_note(f"not each time: {rate} runs of this case")
        return error

    def _run(self, case: CaseSpec, *, doubt: bool = False) -> _Outcome:
        begun, self._begun = self._begun, ""
        if doubt or begun != digest(case):
            self._put_on_disk(case)
        observation, verdict = self._judged(case)
        self._torch = observation.torch or self._torch
        if not verdict.findings:
            # A clean case's observation is large and nobody asks for it again.
            outcome = _Outcome(verdict)
        else:
            outcome = self._weighed(case, (observation, verdict), doubt=doubt)
        self._unsettled = True
        if not outcome.verdict.findings:
            self.settle()
        return outcome

    def _put_on_disk(self, case: CaseSpec) -> None:
        self.settle()
        self._ports.archive.begin(case)

    def _weighed(self, case: CaseSpec, first: Judged, *, doubt: bool) -> _Outcome:
        confirmed = Confirmed(verdict=first[1], observation=first[0])
        known = self._known(case, first[1])
        if doubt or any(
            f.key not in known and f.key not in self._confirmed for f in first[1].findings
        ):
            # On fresh ranks: what an earlier case left behind in them must not count.
            self._pool(case.world_size).close()
            confirmed = confirm(
                first,
                lambda patience: self._judged(case, patience=patience),
                reruns=self.settings.reruns,
                flaky_runs=self.settings.flaky_runs,
            )
            known = self._known(case, confirmed.verdict)
            self._confirmed.update(
                f.key for f in confirmed.verdict.findings if f.key not in confirmed.rates
            )
        return _Outcome(confirmed.verdict, known, confirmed.rates, confirmed.observation)

    def _judged(self, case: CaseSpec, *, patience: bool = False) -> Judged:
        observation = self._pool(case.world_size).run(case, patience=patience)
        return observation, self._ports.judge(case, observation)

    def _known(self, case: CaseSpec, verdict: Verdict) -> dict[str, str]:
        known: dict[str, str] = {}
        for finding in verdict.findings:
            entry = self._ports.known.match(
                case, finding, torch=self._torch, backend=self.settings.backend
            )
            if entry is not None:
                known[finding.key] = entry.id
        return known

    def _pool(self, world_size: int) -> PoolLike:
        pool = self._pools.get(world_size)
        if pool is None:
            pool = self._pools[world_size] = self._ports.make_pool(world_size)
        return pool

    def _remember(self, name: str, outcome: _Outcome) -> None:
        self._cache[name] = outcome
        self._cache.move_to_end(name)
        while len(self._cache) > self.settings.cache_size:
            self._cache.popitem(last=False)


def _examined(case: CaseSpec, name: str, outcome: _Outcome, *, fresh: bool) -> Examined:
    return Examined(
        case=case,
        digest=name,
        verdict=outcome.verdict,
        known=outcome.known,
        rates=outcome.rates,
        observation=outcome.observation,
        fresh=fresh,
    )
