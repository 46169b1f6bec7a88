"""Rule about twins: another way to run the same training comes to the same result."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import FLOAT32_EPS, Invariant, subjects
from fsdpfuzz.observations import Comparison, Observation
from fsdpfuzz.spec import CaseSpec, Step, parting
from fsdpfuzz.verdict import Finding

ABSOLUTE = 1e-5
"""Absolute tolerance by which ``torch.testing.assert_close`` calls float tensors equal; the
relative one is taken off where the tensors are."""
LARGE = 32.0
"""Up to this largest element those tolerances hold as they are; no document has a larger one."""
WOBBLE = 64.0
"""Rounding units, of what the largest element has beyond `LARGE`, by which sums in another
order may differ besides."""


def allowed(comparison: Comparison, case: CaseSpec) -> float:
    """What may remain of the deviation; nothing where both compute the same in the same order."""
    if comparison.exact:
        return 0.0
    large = WOBBLE * comparison.eps * max(0.0, comparison.scale - LARGE)
    return ABSOLUTE + large + adaptive_wobble(case, comparison.op)


def adaptive_wobble(case: CaseSpec, op: int) -> float:
    """How far the steps up to ``op`` may carry apart what float32 rounds in other ways.

    Adam divides a gradient by its own size: one that is only rounding, as before a layer that
    norms its scale away, becomes a step of up to ``lr / eps`` times that rounding.
    """
    optimizer = case.optimizer
    if optimizer is None or optimizer.name == "sgd":
        return 0.0
    steps = sum(isinstance(request, Step) for request in case.program[: op + 1])
    return WOBBLE * FLOAT32_EPS * steps * optimizer.lr / optimizer.eps


def _differs(comparison: Comparison, case: CaseSpec) -> bool:
    return not comparison.finite or comparison.error > allowed(comparison, case)


def _agree(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    until = parting(case)
    told = set()
    for report, subject in subjects(observation):
        for comparison in subject.against_case:
            past = until is not None and comparison.op >= until
            where = f"{case.api}:{subject.name}:{comparison.quantity}"
            if past or subject.name in told or not _differs(comparison, case):
                continue
            told.add(subject.name)
            yield Finding(
                invariant="twins_agree",
                symptom="mismatch",
                where=where,
                message=f"{comparison.quantity}={comparison.observed:.9g} in the twin "
                f"{subject.name!r}, but should be the case's {comparison.expected:.9g} "
                f"{'exactly' if comparison.exact else f'within {allowed(comparison, case):.3g}'} "
                f"[{comparison.name}, rank {report.rank}, program[{comparison.op}]]",
                observed=repr(comparison.observed),
                expected=repr(comparison.expected),
                op=comparison.op,
            )


TWINS = (
    Invariant(
        "twins_agree",
        "losses, outputs, gradients and parameters of a twin are those of the case",
        _agree,
    ),
)
