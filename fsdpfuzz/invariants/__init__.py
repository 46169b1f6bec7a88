"""Named rules over observations. Each has a case in the tests on which it must fail."""

from __future__ import annotations

from fsdpfuzz.invariants._agreement import AGREEMENT, is_rejection
from fsdpfuzz.invariants._base import UNDERFLOW, Invariant, broken, tolerance
from fsdpfuzz.invariants._hooks import HOOKS
from fsdpfuzz.invariants._memory import MEMORY
from fsdpfuzz.invariants._order import ORDER, ORDER_ERROR, ORDER_WARNING, order_refused
from fsdpfuzz.invariants._parity import PARITY
from fsdpfuzz.invariants._state_dict import STATE_DICT
from fsdpfuzz.invariants._structure import STRUCTURE
from fsdpfuzz.invariants._twins import ABSOLUTE, LARGE, TWINS, WOBBLE, adaptive_wobble
from fsdpfuzz.observations import Observation, RankReport
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding, Verdict

REGISTRY: tuple[Invariant, ...] = (
    *ORDER,
    *AGREEMENT,
    *PARITY,
    *TWINS,
    *STRUCTURE,
    *HOOKS,
    *STATE_DICT,
    *MEMORY,
)
"""In order of blame: what stands first explains what comes later."""

__all__ = [
    "ABSOLUTE",
    "LARGE",
    "ORDER_ERROR",
    "ORDER_WARNING",
    "REGISTRY",
    "UNDERFLOW",
    "WOBBLE",
    "Invariant",
    "adaptive_wobble",
    "broken",
    "judge",
    "tolerance",
]


def judge(case: CaseSpec, observation: Observation) -> Verdict:
    """The verdict on a case: a finding for each broken invariant, the first cause first.

    A mismatch that follows from an earlier one is not reported beside it: wrong gradients
    make wrong parameters, and those make wrong losses.
    """
    findings = [f for invariant in REGISTRY for f in invariant.check(case, observation)]
    if findings:
        return Verdict(status="finding", findings=tuple(_causes(findings)))
    if order_refused(case, observation):
        return Verdict(status="passed")
    if is_rejection(observation):
        first = observation.raised()[0][1]
        return Verdict(status="rejected", reason=f"{first.type}: {first.message[:300]}")
    reports = [report for report in observation.reports if report is not None]
    if not any(report.live or _says_more(report) for report in reports):
        return Verdict(status="vacuous", reason="no trainable parameter gets a gradient")
    return Verdict(status="passed")


def _says_more(report: RankReport) -> bool:
    """Whether something was held to a rule that needs no gradient: state or memory."""
    return any(subject.states_taken or subject.tracker_peak for subject in report.subjects)


_CHAIN = ("output_parity", "loss_parity", "grad_parity", "param_parity", "state_dict_values")


def _causes(findings: list[Finding]) -> list[Finding]:
    """Of the mismatches, only those of the earliest operation: the rest follows from them."""
    mismatches = [f for f in findings if f.invariant in _CHAIN]
    if not mismatches:
        return findings
    first = min(mismatches, key=lambda f: (f.op, _CHAIN.index(f.invariant)))
    kept = [f for f in mismatches if (f.invariant, f.op) == (first.invariant, first.op)]
    return [f for f in findings if f not in mismatches or f in kept]
