"""Which parameters have a gradient from the time in which they were frozen."""

from __future__ import annotations

import msgspec
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
    Sequential,
    Step,
    ZeroGrad,
    anatomy,
    check,
    parameter_features,
)
from fsdpfuzz.case.operations import ClearGrad, RequiresGrad

NAME = "1.weight"
FREEZE, UNFREEZE = (RequiresGrad(parameters=(NAME,), value=value) for value in (False, True))
DEFERRED: tuple[Op, ...] = (Forward(sync=False), Backward())
REDUCED: tuple[Op, ...] = (Forward(), Backward())
FLAT = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
PARTS = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""),))


def case(
    *program: Op,
    plan: Fsdp1Plan | Fsdp2Plan = PARTS,
    frozen: tuple[str, ...] = (),
    bias: bool = True,
) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=2), Linear(out=2, bias=bias))),
        inputs=Dense(width=2),
        plan=plan,
        frozen=frozen,
        program=program,
    )


def told(given: CaseSpec, name: str = NAME) -> str:
    check(given)
    return parameter_features(anatomy(given), name)["frozen_in_no_sync"]


# As they were run on gloo, torch 2.13.0: where it is on, the gradient is wrong.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((FREEZE, *DEFERRED, UNFREEZE, *REDUCED), "on"),
        ((FREEZE, *REDUCED, UNFREEZE, *REDUCED), "off"),
        ((FREEZE, *DEFERRED, *REDUCED), "off"),
        ((FREEZE, *DEFERRED, *REDUCED, UNFREEZE, *REDUCED), "off"),
        ((FREEZE, *DEFERRED, UNFREEZE, *DEFERRED, *REDUCED), "on"),
        ((FREEZE, *DEFERRED, ZeroGrad(), UNFREEZE, *REDUCED), "off"),
        ((FREEZE, Forward(sync=False), UNFREEZE, Backward(), *REDUCED), "on"),
        ((*DEFERRED, FREEZE, *DEFERRED, UNFREEZE, *REDUCED), "on"),
        ((*REDUCED, FREEZE, *DEFERRED, UNFREEZE, *REDUCED), "on"),
        ((FREEZE, *DEFERRED, Forward(grad=False), UNFREEZE, *REDUCED), "on"),
        ((FREEZE, *DEFERRED, *REDUCED, Step(), UNFREEZE, *REDUCED), "off"),
    ],
)
def test_its_gradient_waits_from_a_time_in_which_it_was_frozen(
    program: tuple[Op, ...], expected: str
) -> None:
    assert told(case(*program)) == expected
    assert told(case(*program), "0.weight") == "off"


CLEAR = ClearGrad(parameters=(NAME,))
CLEAR_ALL = ClearGrad(parameters=("0.weight", "0.bias", "1.weight", "1.bias"))


# As they were run on gloo, torch 2.13.0, under NO_SHARD: where it is on, the gradient is wrong.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((*REDUCED, CLEAR, *DEFERRED, *REDUCED), "on"),
        ((*REDUCED, CLEAR, ZeroGrad(set_to_none=False), *DEFERRED, *REDUCED), "on"),
        ((*REDUCED, CLEAR_ALL, *DEFERRED, *REDUCED), "off"),
        ((FREEZE, *REDUCED, UNFREEZE, *DEFERRED, *REDUCED), "on"),
        ((FREEZE, *REDUCED, UNFREEZE, *DEFERRED, *DEFERRED, *REDUCED), "on"),
        ((FREEZE, *REDUCED, UNFREEZE, *DEFERRED), "off"),
        ((FREEZE, *REDUCED, UNFREEZE, *REDUCED), "off"),
        ((FREEZE, *REDUCED, UNFREEZE, *REDUCED, *DEFERRED, *REDUCED), "off"),
        ((FREEZE, *REDUCED, ZeroGrad(), UNFREEZE, *DEFERRED, *REDUCED), "off"),
        ((*REDUCED, FREEZE, UNFREEZE, *DEFERRED, *REDUCED), "off"),
        ((*DEFERRED, *REDUCED), "off"),
    ],
)
def test_it_has_its_first_gradient_beside_others_behind_no_sync(
    program: tuple[Op, ...], expected: str
) -> None:
    unit = Fsdp1Unit(path="", sharding="NO_SHARD", use_orig_params=True)
    given = case(*program, plan=Fsdp1Plan(units=(unit,)))
    check(given)
    found = {p.fqn: parameter_features(anatomy(given), p.fqn) for p in anatomy(given).parameters}
    assert found[NAME]["lacked_in_no_sync"] == expected
    assert found["0.weight"]["lacked_in_no_sync"] == "off"


def test_it_lies_beside_a_trained_one_in_a_flat_parameter_that_is_not_shown() -> None:
    waiting = (*DEFERRED, UNFREEZE, *REDUCED)
    assert told(case(*waiting, frozen=(NAME,))) == "on"
    whole = RequiresGrad(parameters=("0.weight", "0.bias", "1.weight", "1.bias"), value=False)
    thawed = msgspec.structs.replace(whole, value=True)
    assert told(case(whole, *DEFERRED, thawed, *REDUCED, plan=FLAT)) == "off"
    units = tuple(Fsdp1Unit(path=path, use_orig_params=True) for path in ("", "1"))
    apart = Fsdp1Plan(units=units)
    assert told(case(FREEZE, *waiting, plan=apart)) == "on"
    assert told(case(FREEZE, *waiting, plan=apart, bias=False)) == "off"


def test_fsdp2_has_a_gradient_of_each_parameter() -> None:
    given = case(FREEZE, *DEFERRED, UNFREEZE, *REDUCED, plan=SECOND)
    check(given)
    assert "frozen_in_no_sync" not in parameter_features(anatomy(given), NAME)
