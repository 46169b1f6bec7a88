"""Adam makes a step of any gradient, also of one that is nothing but rounding."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, Optimizer
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.expect import carried_by_steps
from fsdpfuzz.invariants import judge, tolerance
from fsdpfuzz.observations import Comparison
from fsdpfuzz.verdict import Finding
from tests.unit.invariants.observed import CASE, comparison, observed, subject

ADAM = msgspec.structs.replace(CASE, optimizer=Optimizer(name="adam", lr=0.01, eps=1e-4))
SGD = msgspec.structs.replace(CASE, optimizer=Optimizer())
GRADIENT = comparison(error=3e-7, baseline=0.0)
EXPLAINED = carried_by_steps(ADAM, 2, GRADIENT.error)


def off(by: float) -> Comparison:
    """A parameter that is off by what rounding allows, and that much more."""
    param = comparison(quantity="param", op=2, baseline=0.0)
    return msgspec.structs.replace(param, error=tolerance(param) + by)


def findings(case: CaseSpec, *seen: Comparison) -> tuple[Finding, ...]:
    return judge(case, observed(subject(comparisons=seen), case=case)).findings


def test_a_step_carries_what_the_gradient_was_off() -> None:
    assert 2e-5 < EXPLAINED < 5e-5
    assert findings(ADAM, GRADIENT, off(0.9 * EXPLAINED)) == ()
    (finding,) = findings(ADAM, GRADIENT, off(1.1 * EXPLAINED))
    assert finding.invariant == "param_parity"
    assert finding.allowed == pytest.approx(tolerance(off(0.0)) + EXPLAINED)


def test_sgd_makes_no_more_of_it() -> None:
    assert carried_by_steps(SGD, 2, 1.0) == 0.0
    (finding,) = findings(SGD, GRADIENT, off(0.5 * EXPLAINED))
    assert finding.allowed == pytest.approx(tolerance(off(0.0)))


def test_a_step_that_is_left_out_is_more_than_any_rounding() -> None:
    far = msgspec.structs.replace(GRADIENT, error=2e-5)
    (finding,) = findings(ADAM, far, off(0.2 * 0.01))
    assert finding.allowed == pytest.approx(tolerance(off(0.0)) + 0.1 * 0.01)


def test_what_a_lower_dtype_loses_is_measured() -> None:
    low = msgspec.structs.replace(off(0.0), coarse=0.0)
    low = msgspec.structs.replace(low, error=tolerance(low) + 0.5 * EXPLAINED)
    (finding,) = findings(ADAM, GRADIENT, low)
    assert finding.allowed == pytest.approx(tolerance(low))


def test_scaled_gradients_explain_nothing() -> None:
    scaled = msgspec.structs.replace(ADAM, grad_scaler=GradScaler())
    (finding,) = findings(scaled, GRADIENT, off(0.5 * EXPLAINED))
    assert finding.allowed == pytest.approx(tolerance(off(0.0)))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "1.weight"},
        {"quantity": "input_grad"},
        # It comes after the step.
        {"op": 3},
        {"error": 0.0},
    ],
)
def test_another_gradient_explains_nothing(changes: dict[str, object]) -> None:
    other = msgspec.structs.replace(GRADIENT, **changes)
    (finding,) = findings(ADAM, other, off(0.5 * EXPLAINED))
    assert finding.invariant == "param_parity"


def test_gradients_that_were_compared_together_explain_it() -> None:
    together = msgspec.structs.replace(GRADIENT, name="*")
    assert findings(ADAM, together, off(0.9 * EXPLAINED)) == ()


def test_a_wrong_gradient_is_a_finding_of_its_own() -> None:
    wrong = msgspec.structs.replace(GRADIENT, error=1.0)
    (finding,) = findings(ADAM, wrong, off(0.5 * EXPLAINED))
    assert finding.invariant == "grad_parity"
