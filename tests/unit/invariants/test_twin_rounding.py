"""How far a twin may be from its case."""

from __future__ import annotations

import msgspec

from fsdpfuzz.invariants import ABSOLUTE, adaptive_wobble, judge
from fsdpfuzz.spec import Backward, CaseSpec, Checkpoint, Forward, Optimizer, Step, Twin, check
from fsdpfuzz.verdict import Verdict
from tests.unit.invariants.test_judge import CASE, comparison, observed, subject

TWIN = Twin(name="plain", checkpoints=(Checkpoint(path="", kind="offload"),))
ADAM = Optimizer(name="adam", lr=0.01, eps=1e-4)


def case_with(optimizer: Optimizer, steps: int = 2) -> CaseSpec:
    program = (Forward(), Backward(), Step()) * steps
    case = msgspec.structs.replace(CASE, optimizer=optimizer, program=program, twins=(TWIN,))
    check(case)
    return case


def judged(case: CaseSpec, error: float, op: int, *, exact: bool = False) -> Verdict:
    off = comparison(quantity="param", error=error, baseline=0.0, op=op, exact=exact)
    twin = subject(name="plain", against_case=(off,))
    return judge(case, observed(subject(), twin))


def test_adam_carries_rounding_apart_with_each_step() -> None:
    """Found by drawing: a gain before a norm, whose gradient is nothing but rounding."""
    case = case_with(ADAM)
    assert adaptive_wobble(case, 1) == 0.0
    assert 2e-5 < adaptive_wobble(case, 2) < 0.1 * ADAM.lr
    assert adaptive_wobble(case, 5) == 2 * adaptive_wobble(case, 2)
    assert adaptive_wobble(case_with(Optimizer()), 5) == 0.0


def test_the_bound_is_that_of_the_operation() -> None:
    case = case_with(ADAM)
    slack = ABSOLUTE + adaptive_wobble(case, 2)
    assert judged(case, 0.9 * slack, 2).status == "passed"
    (finding,) = judged(case, 1.1 * slack, 2).findings
    assert finding.key == "twins_agree/mismatch/fsdp2:plain:param"
    assert judged(case, 1.1 * slack, 5).status == "passed"
    assert judged(case_with(Optimizer()), 1.1 * ABSOLUTE, 2).status == "finding"


def test_what_computes_the_same_must_be_the_same() -> None:
    assert judged(case_with(ADAM), 1e-12, 2, exact=True).status == "finding"
