"""A case with its verdict, as a session examined it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fsdpfuzz.case import CaseSpec, features
from fsdpfuzz.loop._events import CaseDone, Rate
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the cache keeps of a case. Observations are kept for findings only."""

    verdict: Verdict
    known: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    observation: Observation | None = None
    unconfirmed: tuple[Finding, ...] = ()

    def examined(self, case: CaseSpec, digest: str, *, fresh: bool) -> Examined:
        """The same with the case that it is of; ``fresh`` says that it ran now."""
        return Examined(
            case=case,
            digest=digest,
            verdict=self.verdict,
            known=self.known,
            rates=self.rates,
            observation=self.observation,
            fresh=fresh,
            unconfirmed=self.unconfirmed,
        )


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
    unconfirmed: tuple[Finding, ...] = ()
    """What showed once and not again, without evidence; no part of the verdict."""

    @property
    def news(self) -> tuple[Finding, ...]:
        """The findings that no known entry explains."""
        return tuple(f for f in self.verdict.findings if f.key not in self.known)

    def done(self, index: int, property_name: str, restarts: int, seconds: float = 0.0) -> CaseDone:
        """What a run tells of it."""
        return CaseDone(
            index=index,
            property_name=property_name,
            digest=self.digest,
            features=features(self.case),
            status=self.verdict.status,
            seconds=seconds,
            restarts=restarts,
            known=tuple(sorted(set(self.known.values()))),
        )
