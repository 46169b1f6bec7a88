"""How far a variant may be from its case."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    EPSILON,
    Backward,
    CaseSpec,
    Checkpoint,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Optimizer,
    Precision,
    Step,
    Variant,
    check,
)
from fsdpfuzz.case.base import Dtype
from fsdpfuzz.expect import adaptive_wobble, between_variants
from fsdpfuzz.expect.rounding import ABSOLUTE
from fsdpfuzz.invariants import judge
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Verdict
from tests.unit.invariants.observed import CASE, comparison, observed, subject

VARIANT = Variant(name="plain", checkpoints=(Checkpoint(path="", kind="offload"),))
ADAM = Optimizer(name="adam", lr=0.01, eps=1e-4)


def case_with(optimizer: Optimizer, steps: int = 2) -> CaseSpec:
    program = (Forward(), Backward(), Step()) * steps
    case = msgspec.structs.replace(CASE, optimizer=optimizer, program=program, twins=(VARIANT,))
    check(case)
    return case


def seen(error: float, op: int, *, exact: bool = False) -> Observation:
    off = comparison(quantity="param", error=error, baseline=0.0, op=op, exact=exact)
    return observed(subject(), subject(name="plain", against_case=(off,)))


def judged(case: CaseSpec, error: float, op: int, *, exact: bool = False) -> Verdict:
    return judge(case, seen(error, op, exact=exact))


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
    assert (finding.key, finding.variant) == ("twins_agree/mismatch/fsdp2", "plain")
    assert (finding.quantity, finding.op, finding.operation) == ("param", 2, "step")
    assert judged(case, 1.1 * slack, 5).status == "passed"
    assert judged(case_with(Optimizer()), 1.1 * ABSOLUTE, 2).status == "finding"


def test_what_float32_is_off_by_a_variant_may_be_off_by() -> None:
    case, lost = case_with(Optimizer()), 0.01
    most = ABSOLUTE + between_variants(lost)
    for share, status in ((0.9, "passed"), (1.1, "finding")):
        off = comparison(quantity="param", error=share * most, baseline=lost, op=2)
        seen = observed(subject(), subject(name="plain", against_case=(off,)))
        assert judge(case, seen).status == status


def test_what_computes_the_same_must_be_the_same() -> None:
    assert judged(case_with(ADAM), 1e-12, 2, exact=True).status == "finding"


def test_each_variant_is_told_once_at_its_first_deviation() -> None:
    other = msgspec.structs.replace(VARIANT, name="other")
    case = msgspec.structs.replace(case_with(Optimizer()), twins=(VARIANT, other))
    off = [comparison(quantity="param", error=1.0, op=op) for op in (2, 5)]
    varied = [subject(name=name, against_case=tuple(off)) for name in ("plain", "other")]
    found = judge(case, observed(subject(), *varied)).findings
    assert [(f.variant, f.op, f.ranks) for f in found] == [("plain", 2, (0,)), ("other", 2, (0,))]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_lower_dtype_rounds_what_comes_into_a_float32_tensor(dtype: Dtype) -> None:
    """Found on NCCL: an embedding's gradient under bfloat16, added up atomically."""
    told = Precision(param=dtype)
    plan = Fsdp2Plan(units=tuple(Fsdp2Unit(path=path, precision=told) for path in ("0", "")))
    full = case_with(Optimizer())
    low = msgspec.structs.replace(full, plan=plan)
    step = EPSILON[dtype]
    assert judged(full, step, 1).status == "finding"
    assert judged(low, step, 1).status == "passed"
    assert judged(low, step, 1, exact=True).status == "finding"
    assert judged(low, 0.2, 1).status == "finding"
