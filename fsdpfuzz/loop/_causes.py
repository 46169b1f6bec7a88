"""One fault, one finding: which findings have the same cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop._events import Found
from fsdpfuzz.reduce import Ablation, alike, simpler
from fsdpfuzz.verdict import Finding, Verdict

_FIRST = ("hang", "rank_death", "crash", "rank_divergence", "unclear_error")
_ORDER = ("output", "loss", "grad", "input_grad", "param", "buffer")

Run = Callable[[CaseSpec], Verdict]


@dataclass(slots=True)
class Cause:
    """A finding that was reduced, and what it needs."""

    found: Found
    case: CaseSpec
    """The smallest case that shows it."""
    shows: tuple[Finding, ...]
    """All findings of that case."""
    ablation: Ablation

    # Exceptions are alike on both APIs, whatever they say: another fault may come from that place.
    def has(self, finding: Finding) -> bool:
        """Whether its smallest case shows the very finding; else the case of that one is kept."""
        return any(finding.key == shown.key for shown in self.shows)

    # A wrong value is like any other of its kind, so the API tells two faults apart.
    def shown_in(self, findings: Iterable[Finding], api: str) -> bool:
        """Whether its finding, or one alike, is among those of a case under ``api``.

        It is not where its own smallest case shows nothing under that API. Nor is a wrong value
        where that case needs what the API lacks.
        """
        return not self._is_apart_from(api) and shows(findings, self.found.finding)

    def _is_apart_from(self, api: str) -> bool:
        ablation, finding = self.ablation, self.found.finding
        if api == finding.api or not ablation.runs:
            return False
        lacking = finding.failure is None and not ablation.tried_under(api)
        return lacking or ablation.not_under(api)


def by_precedence(findings: Iterable[Finding]) -> list[Finding]:
    """The findings of a case, those first that others follow from: what ends it, what comes first.

    A wrong output makes wrong gradients, and these make wrong parameters; a case that differs
    from the reference differs from its variants, too. What only costs time or memory comes last.
    """
    return sorted(findings, key=_precedence)


def _precedence(finding: Finding) -> tuple[object, ...]:
    ends = finding.symptom in _FIRST
    compared = finding.invariant == "twins_agree"
    op = finding.op if finding.op >= 0 else 10_000
    known = finding.quantity in _ORDER
    place = _ORDER.index(finding.quantity) if known else len(_ORDER)
    return (not ends, _only_costs(finding), compared, bool(finding.variant), op, place, finding.key)


def _only_costs(finding: Finding) -> bool:
    from fsdpfuzz.invariants import REGISTRY

    broken = REGISTRY.get(finding.invariant)
    return broken is not None and broken.costs


def outdoes(finding: Finding, other: Finding) -> bool:
    """Whether one cause that shows as both is told by ``finding``, whichever was met first.

    A reduction that is left out costs time where the ranks have equal gradients, as two twice
    in a mean; the next case has wrong ones.
    """
    return _only_costs(other) and not _only_costs(finding)


def same_cause(cause: Cause, case: CaseSpec, finding: Finding, run: Run) -> bool:
    """Whether a finding goes away with what another one needs.

    Each option that the other needs is taken from the case alone; a case that has none of
    them, or still shows the finding, has another cause. So has one whose program lacks the
    operation at which the other one shows, or that is under an API with which the other one
    does not show: an option such as nested units is needed for much. Where the other one needs
    no option the two are told apart once both are reduced.
    """
    at = cause.found.finding.operation
    if at and all(op.kind() != at for op in case.program):
        return False
    if cause.ablation.not_under(finding.api):
        return False
    needed = dict.fromkeys(cause.ablation.needed)
    # Of an option that nobody tried it cannot be said that the finding stays without it.
    if not needed or not cause.ablation.complete:
        return False
    without: dict[str, CaseSpec] = {}
    for neighbour in simpler(case):
        if neighbour.words in needed:
            without.setdefault(neighbour.words, neighbour.case)
    return set(without) == set(needed) and not any(
        shows(run(changed).findings, finding) for changed in without.values()
    )


def shows(findings: Iterable[Finding], finding: Finding) -> bool:
    """Whether a finding, or one alike, is among those of a case."""
    return any(alike(finding, found) for found in findings)
