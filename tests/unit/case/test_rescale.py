"""What `rescale` says, refuses and lowers to."""

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
    Op,
    Plan,
    Step,
    anatomy,
    check,
    features,
    lower,
    parameter_features,
)
from fsdpfuzz.case.operations.rescale import Rescale
from fsdpfuzz.case.recipe import Call, Do, Operation, literal
from fsdpfuzz.errors import CaseError

SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
ORIGINAL = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
FLAT = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
TRAINED = (Forward(), Backward(), Step())


def case(plan: Plan, *names: str, new_data: bool = False, **changes: Any) -> CaseSpec:
    scaled = Rescale(parameters=names, new_data=new_data)
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Linear(out=3),
        "inputs": Dense(width=2),
        "plan": plan,
        "program": (*TRAINED, scaled, *TRAINED),
    }
    return CaseSpec(**values | changes)


def scaled(given: CaseSpec) -> list[tuple[str, Call]]:
    """By whom, and how."""
    operation = next(
        s for s in lower(anatomy(given)).main if isinstance(s, Operation) and s.name == "rescale"
    )
    return [
        (d.who, d.call) for d in operation.body if isinstance(d, Do) and isinstance(d.call, Call)
    ]


@pytest.mark.parametrize(
    ("plan", "new_data", "how"),
    [
        (SECOND, False, "steps.rescale.scale"),
        (ORIGINAL, False, "steps.rescale.scale"),
        (ORIGINAL, True, "steps.rescale.replace"),
    ],
)
def test_one_of_a_unit_where_parameters_are_their_own(plan: Plan, new_data: bool, how: str) -> None:
    given = case(plan, "bias", new_data=new_data)
    check(given)
    assert features(given)["rescaled"] == ("new data" if new_data else "in place")
    ((who, call),) = scaled(given)
    assert (who, call.function, call.args[1]) == ("both", how, literal(("bias",)))


def test_a_flat_parameter_as_a_whole_and_in_place() -> None:
    given = case(FLAT, "weight", "bias")
    check(given)
    assert [(who, call.args[1]) for who, call in scaled(given)] == [
        ("fsdp", literal(("_flat_param",))),
        ("reference", literal(("weight", "bias"))),
    ]
    with pytest.raises(CaseError, match="'bias' lies in a flat parameter: name all of it"):
        check(case(FLAT, "bias"))


@pytest.mark.parametrize("plan", [SECOND, FLAT])
def test_only_original_parameters_are_written_back(plan: Plan) -> None:
    with pytest.raises(CaseError, match="only fsdp1 writes back"):
        check(case(plan, "weight", "bias", new_data=True))


def test_not_while_units_may_be_whole_and_not_of_what_is_frozen() -> None:
    change = Rescale(parameters=("bias",))
    for program in (
        (Forward(), change, Backward()),
        (Forward(sync=False), Backward(), change, Forward(), Backward()),
        (*TRAINED, Forward(grad=False), change, *TRAINED),
        (*TRAINED, Forward(drop=True), Step(), change),
    ):
        with pytest.raises(CaseError, match="units may be whole"):
            check(case(SECOND, "bias", program=program))
    check(case(SECOND, "bias", program=(change, Forward(grad=False), *TRAINED, change)))
    with pytest.raises(CaseError, match="frozen"):
        check(case(SECOND, "bias", frozen=("bias",)))
    with pytest.raises(CaseError, match="scale"):
        check(case(SECOND, "scale"))


SET, SCALED = (Rescale(parameters=("weight",), new_data=new) for new in (True, False))


@pytest.mark.parametrize(
    ("program", "early"),
    [
        ((SET, *TRAINED), "on"),
        ((SET, Forward(grad=False), *TRAINED), "on"),
        ((*TRAINED, SET, *TRAINED), "off"),
        ((SCALED, *TRAINED), "off"),
        ((SCALED, SET, *TRAINED), "on"),
    ],
)
def test_data_may_be_set_before_fsdp_knows_what_it_shards(
    program: tuple[Op, ...], early: str
) -> None:
    a = anatomy(case(ORIGINAL, program=program))
    assert parameter_features(a, "weight")["set_early"] == early
    assert parameter_features(a, "bias")["set_early"] == "off"
