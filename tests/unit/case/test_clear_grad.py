"""What `clear_grad` says, refuses and lowers to."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Step,
    anatomy,
    check,
    features,
    lower,
)
from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.operations.clear_grad import ClearGrad
from fsdpfuzz.case.recipe import Call, Do, Operation, literal
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import grads_known, waiting_bytes

SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
ORIGINAL = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
FLAT = Fsdp1Plan(units=(Fsdp1Unit(path=""),))


def case(plan: Plan, *names: str, **changes: Any) -> CaseSpec:
    cleared = ClearGrad(parameters=names)
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Linear(out=3),
        "inputs": Dense(width=2),
        "plan": plan,
        "program": (Forward(), Backward(), cleared, Step()),
    }
    return CaseSpec(**values | changes)


def dropped(given: CaseSpec) -> list[tuple[str, Call]]:
    """By whom, and how."""
    operation = next(
        s for s in lower(anatomy(given)).main if isinstance(s, Operation) and s.name == "clear_grad"
    )
    return [
        (d.who, d.call) for d in operation.body if isinstance(d, Do) and isinstance(d.call, Call)
    ]


@pytest.mark.parametrize("plan", [SECOND, ORIGINAL])
def test_a_part_of_a_unit_is_cleared_where_parameters_are_their_own(plan: Plan) -> None:
    given = case(plan, "bias")
    check(given)
    assert features(given)["cleared"] == "part"
    ((who, call),) = dropped(given)
    assert (who, call.args[1]) == ("both", literal(("bias",)))
    assert not grads_known(anatomy(given))
    assert may_lack_grads(anatomy(given))


def test_a_flat_parameter_is_cleared_as_a_whole() -> None:
    given = case(FLAT, "weight", "bias")
    check(given)
    assert features(given)["cleared"] == "whole"
    assert [(who, call.args[1]) for who, call in dropped(given)] == [
        ("fsdp", literal(("_flat_param",))),
        ("reference", literal(("weight", "bias"))),
    ]
    with pytest.raises(CaseError, match="'bias' lies in a flat parameter: name all of it"):
        check(case(FLAT, "bias"))


def test_it_needs_reduced_gradients_and_names_that_exist() -> None:
    cleared = ClearGrad(parameters=("bias",))
    waits = (Forward(sync=False), Backward(), cleared, Forward(), Backward())
    for program, text in (
        ((Forward(), cleared, Backward()), "not reduced"),
        (waits, "not reduced"),
    ):
        with pytest.raises(CaseError, match=text):
            check(case(SECOND, "bias", program=program))
    with pytest.raises(CaseError, match="scale"):
        check(case(SECOND, "scale"))
    known = (Forward(sync=False), Backward(), Forward(), Backward(), cleared)
    assert waiting_bytes(anatomy(case(SECOND, "bias", program=known)), 1, 0) is None
