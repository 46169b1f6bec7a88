"""Rule about twins: another way to run the same training comes to the same result."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant, subjects
from fsdpfuzz.observations import Comparison, Observation
from fsdpfuzz.spec import CaseSpec, parting
from fsdpfuzz.verdict import Finding

ABSOLUTE = 1e-5
"""Absolute tolerance by which ``torch.testing.assert_close`` calls float tensors equal; the
relative one is taken off where the tensors are."""
LARGE = 32.0
"""Up to this largest element those tolerances hold as they are; no document has a larger one."""
WOBBLE = 64.0
"""Rounding units, of what the largest element has beyond `LARGE`, by which sums in another
order may differ besides."""


def allowed(comparison: Comparison) -> float:
    """What may remain of the deviation; nothing where both compute the same in the same order."""
    if comparison.exact:
        return 0.0
    return ABSOLUTE + WOBBLE * comparison.eps * max(0.0, comparison.scale - LARGE)


def _differs(comparison: Comparison) -> bool:
    return not comparison.finite or comparison.error > allowed(comparison)


def _agree(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    until = parting(case)
    told = set()
    for report, subject in subjects(observation):
        for comparison in subject.against_case:
            past = until is not None and comparison.op >= until
            where = f"{case.api}:{subject.name}:{comparison.quantity}"
            if past or subject.name in told or not _differs(comparison):
                continue
            told.add(subject.name)
            yield Finding(
                invariant="twins_agree",
                symptom="mismatch",
                where=where,
                message=f"{comparison.quantity}={comparison.observed:.9g} in the twin "
                f"{subject.name!r}, but should be the case's {comparison.expected:.9g} "
                f"{'exactly' if comparison.exact else f'within {allowed(comparison):.3g}'} "
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
