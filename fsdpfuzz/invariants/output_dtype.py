"""What a unit puts out has the dtype that its policy asks for."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.recipe import Variable, call
from fsdpfuzz.expect import output_dtype
from fsdpfuzz.invariants.base import Invariant, operation, subjects, variant_name
from fsdpfuzz.invariants.evidence import SEEN, Evidence, judged
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding

_QUANTITY = "dtype of the output"


class OutputDtype(Invariant):
    """``output_dtype`` of the unit that the program calls (fsdp2)."""

    name = "output_dtype"
    summary = "a unit puts out tensors in its output_dtype"
    wrong = "puts out another dtype than output_dtype"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first forward of each variant that puts out another."""
        forwards = [i for i, op in enumerate(a.case.program) if op.runs_model]
        told = set()
        for report, subject, run in subjects(a, observation):
            if subject.name in told:
                continue
            # A rank that raised has put out less than the program asks for.
            for op, seen in zip(forwards, subject.output_dtypes, strict=False):
                due = output_dtype(run, op)
                if due is None or seen == due:
                    continue
                told.add(subject.name)
                yield Finding(
                    invariant=self.name,
                    symptom="mismatch",
                    api=a.api,
                    variant=variant_name(subject),
                    op=op,
                    operation=operation(a, op),
                    unit=a.case.program[op].called,
                    quantity=_QUANTITY,
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=seen,
                    expected=due,
                )
                break

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The dtype of what that forward puts out."""
        due = output_dtype(a, finding.op)
        return Evidence(
            last=finding.op,
            seen=(call("steps.output_dtype.dtype_of", Variable("output")),),
            judge=judged("other", _QUANTITY, SEEN, due),
        )


OUTPUTS = (OutputDtype(),)
