"""Every case on a second torch, too: what differs is a finding of its own kind.

A session knows nothing of it: its ports are wrapped. A pool becomes two, of which both run each
case at once; the judge marks what only one of them shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop._harness import fault_of
from fsdpfuzz.loop._ports import KnownLike, PoolLike, Ports
from fsdpfuzz.observations import Observation
from fsdpfuzz.reduce import alike
from fsdpfuzz.verdict import Change, Finding, Verdict

Judge = Callable[[CaseSpec, Observation], Verdict]
replace = msgspec.structs.replace


def compared(
    ports: Ports,
    other_pool: Callable[[int], PoolLike],
    *,
    torch: str,
    first: Iterable[CaseSpec] = (),
) -> Ports:
    """The same ports with each case run beside on ``other_pool``, whose ranks have ``torch``.

    A run begins with ``first``: what is known to differ is looked at, before the rest is drawn.
    """
    pairs = _Pairs(ports, other_pool, torch)
    known = _KnownOnEither(ports.known, torch)
    return Ports(
        make_pool=pairs.make_pool,
        judge=pairs.judge,
        archive=ports.archive,
        known=known,
        telling=known.differs,
        first=tuple(first),
    )


def differences(verdict: Verdict, other: Verdict, *, torch: str) -> Verdict:
    """The verdict on a case with what another torch, ``torch``, shows of it.

    What both show is left as it is. A case that fails in one way here and in another one there
    says of neither finding whether it is new or mended: it may hide behind what came first. So
    does one that the other torch refused, or that checks nothing on one of both.
    """
    only = [f for f in verdict.findings if not _among(f, other.findings)]
    gone = [f for f in other.findings if not _among(f, verdict.findings)]
    change: Change = "regression"
    if only and gone:
        change, gone = "changed", []
    elif only and other.status not in ("passed", "finding"):
        change = ""
    if gone and verdict.status not in ("passed", "rejected", "finding"):
        gone = []
    findings = (
        *(_marked(f, change, torch) if f in only else f for f in verdict.findings),
        *(_marked(f, "fixed", torch) for f in gone),
    )
    if not findings:
        return verdict
    return Verdict(status="finding", findings=findings, reason=verdict.reason)


def _among(finding: Finding, others: Iterable[Finding]) -> bool:
    return any(alike(finding, other) for other in others)


def _marked(finding: Finding, change: Change, torch: str) -> Finding:
    return replace(finding, change=change, versus=torch) if change else finding


class _Pairs:
    """The pools of both torches, and the judge of what they saw last."""

    def __init__(self, ports: Ports, other_pool: Callable[[int], PoolLike], torch: str) -> None:
        self._make = ports.make_pool
        self._make_other = other_pool
        self._judge = ports.judge
        self._torch = torch
        self._last: tuple[Observation, Observation] | None = None

    def make_pool(self, world_size: int) -> PoolLike:
        return _Pair(self._make(world_size), self._make_other(world_size), self._saw)

    def judge(self, case: CaseSpec, observation: Observation) -> Verdict:
        verdict = self._judge(case, observation)
        # By identity: a harness error of the other torch has no pair, and `_last` is an earlier
        # case's.
        if self._last is None or self._last[0] is not observation:
            return verdict
        return differences(verdict, self._judge(case, self._last[1]), torch=self._torch)

    def _saw(self, observation: Observation, other: Observation) -> None:
        self._last = (observation, other)


class _Pair:
    """Ranks on either torch, as one pool."""

    def __init__(
        self, first: PoolLike, other: PoolLike, saw: Callable[[Observation, Observation], None]
    ) -> None:
        self._first = first
        self._other = other
        self._saw = saw
        self._begun: CaseSpec | None = None

    @property
    def restarts(self) -> int:
        return self._first.restarts + self._other.restarts

    def begin(self, case: CaseSpec) -> None:
        self._begun = case
        self._first.begin(case)
        self._other.begin(case)

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        """What the first saw; what the other saw, where that is a harness error."""
        # Both are at work before either is waited for. `begin` knows no patience: where that is
        # asked for, each pool begins by itself, one after the other.
        if self._begun != case and not patience:
            self.begin(case)
        self._begun = None
        seen = self._first.run(case, patience=patience)
        other = self._other.run(case, patience=patience)
        # Whoever asks runs such a case again on fresh ranks, of both torches.
        if fault_of(other) and not fault_of(seen):
            return replace(other, torch=seen.torch)
        self._saw(seen, other)
        return seen

    def close(self) -> None:
        self._begun = None
        self._first.close()
        self._other.close()


class _KnownOnEither:
    """The known defects of both torches."""

    def __init__(self, known: KnownLike, other: str) -> None:
        self._known = known
        self._other = other

    def differs(self, case: CaseSpec, *, torch: str, backend: str) -> bool:
        """Whether the case can show what only one of both is known to have."""
        here, there = self._either(case, torch, backend)
        return set(here) != set(there)

    def match(self, case: CaseSpec, finding: Finding, *, torch: str, backend: str) -> str | None:
        where = self._other if finding.change == "fixed" else torch
        return self._known.match(case, finding, torch=where, backend=backend)

    def covering(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        here, there = self._either(case, torch, backend)
        return tuple(dict.fromkeys((*here, *there)))

    def showing(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        here = self._known.showing(case, torch=torch, backend=backend)
        there = self._known.showing(case, torch=self._other, backend=backend)
        return tuple(dict.fromkeys((*here, *there)))

    def exits(self, case: CaseSpec, name: str) -> Iterable[CaseSpec]:
        return self._known.exits(case, name)

    def silent(self, *, torch: str, backend: str) -> tuple[str, ...]:
        return self._known.silent(torch=torch, backend=backend)

    def _either(
        self, case: CaseSpec, torch: str, backend: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        known = self._known
        return (
            known.covering(case, torch=torch, backend=backend),
            known.covering(case, torch=self._other, backend=backend),
        )
