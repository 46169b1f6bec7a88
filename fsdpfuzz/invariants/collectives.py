"""Rules about collectives: how many, of what, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.version import Version

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.recipe import Do, Variable, call
from fsdpfuzz.expect import ANY, KINDS, WHOLE, Bounds, Traffic, traffic
from fsdpfuzz.invariants.base import (
    Invariant,
    is_from,
    operation,
    reduces_in_own,
    runs_of,
    subjects,
    variant_name,
)
from fsdpfuzz.invariants.evidence import SEEN, Evidence, judged
from fsdpfuzz.observations import Observation, RankReport, Subject
from fsdpfuzz.verdict import Finding

_ISSUED = Variable("issued")
_SETTLED = Version("2.11")
"""From this release on fsdp2 keeps a recomputed unit whole, and a root only if it is not asked."""


class Collectives(Invariant):
    """Numbers, dtypes and sizes."""

    name = "collectives"
    summary = "a rank issues the collectives that the structure asks for, in the dtypes asked for"
    wrong = "issues other collectives than its structure asks for"
    costs = True

    def foresee(self, a: Anatomy, torch: str) -> None:
        """What each rank should issue."""
        for run in runs_of(a).values():
            for rank in range(a.case.world_size):
                _due(run, rank, torch)

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first operation of each variant with other collectives."""
        told = set()
        for report, subject, op, seen, due in _promised(a, observation):
            odd = None if subject.name in told else _odd(seen, due)
            if odd is None:
                continue
            told.add(subject.name)
            text, number = odd
            right = due.numbers.get(text, WHOLE)
            yield Finding(
                invariant=self.name,
                symptom="mismatch",
                api=a.api,
                kind=_kind(text, seen, due),
                variant=variant_name(subject),
                op=op,
                operation=operation(a, op),
                unit=due.units.get(text),
                quantity="collectives",
                name=text,
                ranks=(report.rank,),
                world_size=a.case.world_size,
                observed=str(number),
                expected=str(right),
                note=_sum(seen),
            )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """How often the operation issues the one that the finding names."""
        least, most = _bounds(finding.expected)
        judge = judged("outside", finding.name, SEEN, least, most)
        if least == most:
            judge = judged("other", finding.name, SEEN, least)
        elif most == ANY:
            judge = judged("less", finding.name, SEEN, least)
        seen = call(".count", _ISSUED, finding.name)
        return Evidence(last=finding.op, before_last=_NOTED, seen=(seen,), judge=judge)


class GatheredInTurn(Invariant):
    """Order of all-gathers, and of reductions among them."""

    name = "gathered_in_turn"
    summary = (
        "forward gathers units in the order of their calls, backward the next one in time, "
        "and reduces them in turn"
    )
    wrong = "gathers or reduces a unit out of turn"
    costs = True

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first operation of each variant with another order."""
        told = set()
        for report, subject, op, seen, due in _promised(a, observation):
            # Wrong numbers are told of by the other rule; an order of wrong numbers says nothing.
            if subject.name in told or _odd(seen, due) is not None:
                continue
            odd = _disorder(seen, due)
            if odd is None:
                continue
            told.add(subject.name)
            kind, text, then = odd
            yield Finding(
                invariant=self.name,
                symptom="mismatch",
                api=a.api,
                kind=kind,
                variant=variant_name(subject),
                op=op,
                operation=operation(a, op),
                unit=due.units.get(text),
                quantity="order",
                name=text,
                ranks=(report.rank,),
                world_size=a.case.world_size,
                observed=f"after {then}",
                expected=f"before {then}",
            )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """Which of the two collectives comes first."""
        judge = judged("late", _ISSUED, finding.name, finding.expected.removeprefix("before "))
        seen, into = (_ISSUED,), (_ISSUED,)
        return Evidence(last=finding.op, before_last=_NOTED, seen=seen, into=into, judge=judge)


_NOTED = (Do(call=call("steps.collectives.issued"), into=(_ISSUED,)),)
_LATE, _SWAPPED = "late", "swapped"


def _promised(
    a: Anatomy, observation: Observation
) -> Iterator[tuple[RankReport, Subject, int, Sequence[str], Traffic]]:
    """Each operation of which anything is promised, with what was issued in it."""
    for report, subject, run in subjects(a, observation):
        if not subject.issued:
            continue
        for op, due in _due(run, report.rank, observation.torch).items():
            # Broadcasts and barriers are nobody's promise.
            seen = [text for text in subject.issued[op] if text.startswith(KINDS)]
            yield report, subject, op, seen, due


def _due(a: Anatomy, rank: int, torch: str) -> Mapping[int, Traffic]:
    return traffic(a, rank, settled=is_from(_SETTLED, torch), own=reduces_in_own(torch))


def _odd(seen: Sequence[str], due: Traffic) -> tuple[str, int] | None:
    """The first collective whose number is not what it should be, and that number."""
    found = Counter(seen)
    for text in dict.fromkeys((*seen, *due.numbers)):
        least, most = due.numbers.get(text, WHOLE)
        if not least <= found[text] <= most:
            return text, found[text]
    return None


def _kind(text: str, seen: Sequence[str], due: Traffic) -> str:
    """Which collectives, and whether there are more of them, less, or others."""
    kind = text.partition(" ")[0]
    number = sum(other.startswith(kind) for other in seen)
    bounds = [b for other, b in due.numbers.items() if other.startswith(kind)]
    words = kind.replace("_", "-")
    if number > sum(b.most for b in bounds):
        return f"{words}-more"
    if number < sum(b.least for b in bounds):
        return f"{words}-less"
    return f"{words}-other"


def _disorder(seen: Sequence[str], due: Traffic) -> tuple[str, str, str] | None:
    """Which rule is broken, by which collective, and which one it should come before."""
    gathers = [text for text in seen if text in due.order]
    for text, right in zip(gathers, due.order, strict=bool(due.order)):
        if text != right:
            return _SWAPPED, right, text
    for first, then in due.early:
        if seen.index(first) > seen.index(then):
            return _LATE, first, then
    return None


def _sum(seen: Collection[str]) -> str:
    numbers: Mapping[str, int] = Counter(text.partition(" ")[0] for text in seen)
    words = [f"{n} {kind.replace('_', '-')}{'s' * (n > 1)}" for kind, n in numbers.items()]
    return f"{', '.join(words) or 'none'} in all"


def _bounds(text: str) -> Bounds:
    """The bounds that a finding's text says."""
    least, _, most = text.removeprefix("at least ").partition(" to ")
    return Bounds(int(least), int(most or (ANY if text.startswith("at") else least)))


COLLECTIVES = (Collectives(), GatheredInTurn())
