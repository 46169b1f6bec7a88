"""Rule about variants: another way to run the same training comes to the same result."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import EPSILON, Anatomy, coarsest
from fsdpfuzz.case.recipe import MODEL, Value, Variable, call
from fsdpfuzz.expect import adaptive_wobble, alike, parting
from fsdpfuzz.invariants.base import Invariant, operation, subjects, unit_of_parameter
from fsdpfuzz.invariants.evidence import NAMED, RIGHT, SEEN, Evidence, bound, judged, looked_at
from fsdpfuzz.observations import Comparison, Observation
from fsdpfuzz.verdict import Finding


def allowed(comparison: Comparison, a: Anatomy) -> float:
    """What may remain of the deviation; nothing where both compute the same in the same order."""
    if comparison.exact:
        return 0.0
    wobble, coarse = adaptive_wobble(a.case, comparison.op), EPSILON[coarsest(a)]
    return alike(comparison.scale, comparison.eps, wobble, coarse, comparison.baseline)


class VariantsAgree(Invariant):
    """Each variant against the case."""

    name = "twins_agree"
    summary = "losses, outputs, gradients and parameters of a variant are those of the case"
    wrong = "trains to another result where it must not"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first deviation of each variant."""
        until = parting(a)
        told = set()
        for report, subject, run in subjects(a, observation):
            for c in subject.against_case:
                past = until is not None and c.op >= until
                differs = not c.finite or c.error > allowed(c, a)
                if past or subject.name in told or not differs:
                    continue
                told.add(subject.name)
                yield Finding(
                    invariant=self.name,
                    symptom="mismatch",
                    api=a.api,
                    variant=subject.name,
                    op=c.op,
                    operation=operation(a, c.op),
                    quantity=c.quantity,
                    name=c.name,
                    unit=unit_of_parameter(run.at(c.op), c.name),
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=f"{c.observed:.9g}",
                    expected=f"{c.expected:.9g}",
                    allowed=allowed(c, a),
                    note="beyond what assert_close allows" if not c.exact else "",
                )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The tensor that the finding names, from the training of both."""
        value: Value
        if finding.quantity in ("loss", "output"):
            value = Variable(finding.quantity)
        elif finding.quantity == "result":
            value = looked_at(finding.name)
        else:
            step = "gradient" if finding.quantity == "grad" else "value"
            value = call(f"steps.{a.api}.whole.{step}", MODEL, NAMED, a.canonical(finding.name))
        return Evidence(
            last=finding.op,
            against="case",
            seen=(value,),
            judge=judged(
                "unlike",
                finding.name,
                SEEN,
                RIGHT,
                bound(finding),
                0.0 if not finding.allowed else _relative(a),
            ),
        )


def _relative(a: Anatomy) -> float:
    """The relative tolerance of ``torch.testing.assert_close`` for the coarsest dtype."""
    # Named, not read from torch: nothing here imports it.
    return {"float32": 1.3e-6, "float16": 1e-3, "bfloat16": 1.6e-2}[coarsest(a)]


VARIANTS = (VariantsAgree(),)
