"""Named rules over observations. Each has a case in the tests on which it must fail.

To add one, write its file and name it in `REGISTRY`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fsdpfuzz.case import OPERATIONS, CaseSpec, anatomy
from fsdpfuzz.errors import ContractError
from fsdpfuzz.invariants.accumulated import ACCUMULATED
from fsdpfuzz.invariants.agreement import AGREEMENT, is_rejection
from fsdpfuzz.invariants.base import Invariant, broken, tolerance
from fsdpfuzz.invariants.clip import CLIP
from fsdpfuzz.invariants.collectives import COLLECTIVES
from fsdpfuzz.invariants.evidence import Evidence
from fsdpfuzz.invariants.full_params import FULL_PARAMS
from fsdpfuzz.invariants.grad_scaler import GRAD_SCALER
from fsdpfuzz.invariants.hooks import HOOKS
from fsdpfuzz.invariants.memory import MEMORY
from fsdpfuzz.invariants.optim_state import OPTIM
from fsdpfuzz.invariants.order import ORDER, ORDER_ERROR, ORDER_WARNING, order_refused
from fsdpfuzz.invariants.output_dtype import OUTPUTS
from fsdpfuzz.invariants.parity import PARITY, Parity
from fsdpfuzz.invariants.state_dict import STATE_DICT
from fsdpfuzz.invariants.structure import STRUCTURE
from fsdpfuzz.invariants.transfer import TRANSFER
from fsdpfuzz.invariants.variants import VARIANTS
from fsdpfuzz.observations import Observation, RankReport
from fsdpfuzz.verdict import Finding, Verdict


def _by_name(invariants: Iterable[Invariant]) -> dict[str, Invariant]:
    found: dict[str, Invariant] = {}
    for invariant in invariants:
        if invariant.name in found:
            raise ContractError(f"two invariants are called {invariant.name!r}")
        found[invariant.name] = invariant
    return found


REGISTRY: dict[str, Invariant] = _by_name(
    (
        *ORDER,
        *AGREEMENT,
        *CLIP,
        *GRAD_SCALER,
        *FULL_PARAMS,
        *OPTIM,
        *TRANSFER,
        *OUTPUTS,
        *PARITY,
        *VARIANTS,
        *STRUCTURE,
        *HOOKS,
        *STATE_DICT,
        *MEMORY,
        *ACCUMULATED,
        *COLLECTIVES,
    )
)
"""In order of blame: what stands first explains what comes later."""

__all__ = [
    "ORDER_ERROR",
    "ORDER_WARNING",
    "REGISTRY",
    "Evidence",
    "Invariant",
    "broken",
    "foresee",
    "invariant_of",
    "judge",
    "tolerance",
]


def invariant_of(finding: Finding) -> Invariant:
    """The invariant that a finding says is broken; :class:`ContractError` if there is none."""
    try:
        return REGISTRY[finding.invariant]
    except KeyError:
        raise ContractError(f"there is no invariant {finding.invariant!r}") from None


def foresee(case: CaseSpec, torch: str) -> None:
    """Works out what `judge` will hold a case to on that release of torch, while ranks train."""
    a = anatomy(case)
    for invariant in REGISTRY.values():
        invariant.foresee(a, torch)


def judge(case: CaseSpec, observation: Observation) -> Verdict:
    """The verdict on a case: a finding for each broken invariant, the first cause first.

    A mismatch that follows from an earlier one is not reported beside it: wrong gradients
    make wrong parameters, and those make wrong losses.
    """
    a = anatomy(case)
    findings = [f for invariant in REGISTRY.values() for f in invariant.check(a, observation)]
    if findings:
        return Verdict(status="finding", findings=tuple(_causes(findings)))
    # An error that FSDP promises is what has to happen, so the case has passed.
    if order_refused(a, observation):
        return Verdict(status="passed")
    if is_rejection(a, observation):
        first = observation.raised()[0][1]
        return Verdict(status="rejected", reason=f"{first.type}: {first.message[:300]}")
    reports = [report for report in observation.reports if report is not None]
    beyond = next((report.beyond for report in reports if report.beyond), "")
    if beyond and not any(report.live for report in reports):
        return Verdict(status="vacuous", reason=f"training leaves {beyond}")
    if not any(report.live or _says_more(report) for report in reports):
        return Verdict(status="vacuous", reason="no trainable parameter gets a gradient")
    return Verdict(status="passed")


def _says_more(report: RankReport) -> bool:
    """Whether something was held to a rule that needs no gradient: state or memory."""
    return any(subject.states_taken or subject.tracker_peak for subject in report.subjects)


# By the order of the registry: what stands first is the cause of what stands later.
_CHAIN = tuple(name for name, invariant in REGISTRY.items() if invariant.follows)
_RESULTS = {name for i in REGISTRY.values() if isinstance(i, Parity) for name in i.results}
for _kind in OPERATIONS.values():
    if not _RESULTS.issuperset(_kind.results):
        raise ContractError(f"no invariant is about the results of {_kind.kind()}")


def _causes(findings: list[Finding]) -> list[Finding]:
    """Of the mismatches of each variant, only those of the earliest operation.

    The rest follows from them, but only within one training: a variant starts anew.

    A mismatch that a known defect explains counts like any other. Which later ones do not come
    of it cannot be told here: after the next optimizer step, clipping or state dict it has
    reached every unit, and of an operation `Parity` names the largest deviation alone. What
    hides behind a known defect shows in the cases that it does not cover.
    """
    first: dict[str, tuple[int, int]] = {}
    for finding in findings:
        if finding.invariant in _CHAIN:
            earlier = first.get(finding.variant, _when(finding))
            first[finding.variant] = min(earlier, _when(finding))
    return [f for f in findings if f.invariant not in _CHAIN or _when(f) == first[f.variant]]


def _when(finding: Finding) -> tuple[int, int]:
    """Place in the order of causes; what has no operation was seen after the program."""
    op = finding.op if finding.op >= 0 else sys.maxsize
    return op, _CHAIN.index(finding.invariant)
