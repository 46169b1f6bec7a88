"""Which parameters are frozen or unfrozen while their unit is as a forward left it."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Backward, Forward, Op, anatomy, check, parameter_features
from fsdpfuzz.case.operations import RequiresGrad
from tests.unit.case.test_units import fsdp1, fsdp2, make

F, DROPPED, QUIET = Forward(), Forward(drop=True), Forward(grad=False)
B = Backward()
NAME = "0.weight"
UNFREEZE = RequiresGrad(parameters=(NAME,), value=True)
BELOW = Forward(target="1", grad=False)


# As they were run on gloo, torch 2.13.0: fsdp2's root loses the change where it is not ``no``, and
# of fsdp1's units hooks do not fit where it is ``recorded``.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((UNFREEZE, F, B), "no"),
        ((F, B, UNFREEZE, F, B), "no"),
        ((QUIET, UNFREEZE, F, B), "called"),
        ((DROPPED, UNFREEZE, F, B), "recorded"),
        ((DROPPED, QUIET, UNFREEZE, F, B), "recorded"),
        ((QUIET, DROPPED, UNFREEZE, F, B), "recorded"),
        ((DROPPED, F, B, UNFREEZE, F, B), "no"),
        ((F, B, QUIET, UNFREEZE, F, B), "called"),
    ],
)
def test_a_change_comes_between_a_forward_and_any_backward(
    program: tuple[Op, ...], expected: str
) -> None:
    for plan in (fsdp1("", "0", use_orig_params=True), fsdp2("")):
        given = make(plan, program=program, frozen=(NAME, "0.bias"))
        check(given)
        a = anatomy(given)
        assert parameter_features(a, NAME)["changed_alone"] == expected
        assert parameter_features(a, "1.0.weight")["changed_alone"] == "no", "it does not change"


def test_a_unit_that_no_forward_called_is_as_it_was() -> None:
    for units in (("", "0"), ("",), ("", "1")):
        given = make(fsdp2(*units), program=(BELOW, UNFREEZE, F, B), frozen=(NAME,))
        assert parameter_features(anatomy(given), NAME)["changed_alone"] == "no"
    change = RequiresGrad(parameters=("1.0.weight",), value=True)
    given = make(fsdp2("0", "1"), program=(BELOW, change, F, B), frozen=change.parameters)
    assert parameter_features(anatomy(given), "1.0.weight")["changed_alone"] == "called"
