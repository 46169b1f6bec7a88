"""Which parameters are frozen or unfrozen while their unit is as a forward left it."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Backward, Forward, Op, anatomy, check, parameter_features
from fsdpfuzz.case.operations import RequiresGrad
from tests.unit.case.test_units import fsdp1, fsdp2, make

F, DROPPED, QUIET = Forward(), Forward(drop=True), Forward(grad=False)
B = Backward()
NAME = "0.weight"
FREEZE = RequiresGrad(parameters=(NAME,), value=False)
BELOW = Forward(target="1", grad=False)


# As they were run on torch 2.13.0: of fsdp2's root a change is lost where it is not ``no``, and
# with fsdp1 hooks do not fit where it is ``recorded``.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((FREEZE, F, B), "no"),
        ((F, B, FREEZE, F, B), "no"),
        ((QUIET, FREEZE, F, B), "called"),
        ((DROPPED, FREEZE, F, B), "recorded"),
        ((DROPPED, QUIET, FREEZE, F, B), "recorded"),
        ((QUIET, DROPPED, FREEZE, F, B), "recorded"),
        ((DROPPED, F, B, FREEZE, F, B), "no"),
        ((F, B, QUIET, FREEZE, F, B), "called"),
    ],
)
def test_a_change_comes_between_a_forward_and_any_backward(
    program: tuple[Op, ...], expected: str
) -> None:
    for plan in (fsdp1(""), fsdp2("")):
        given = make(plan, program=program)
        check(given)
        a = anatomy(given)
        assert parameter_features(a, NAME)["changed_alone"] == expected
        assert parameter_features(a, "1.0.weight")["changed_alone"] == "no", "it does not change"


def test_a_unit_that_no_forward_called_is_as_it_was() -> None:
    for units, expected in ((("", "0"), "no"), (("",), "no"), (("", "1"), "no")):
        given = make(fsdp2(*units), program=(BELOW, FREEZE, F, B))
        assert parameter_features(anatomy(given), NAME)["changed_alone"] == expected
    change = RequiresGrad(parameters=("1.0.weight",), value=False)
    given = make(fsdp2("0", "1"), program=(BELOW, change, F, B))
    assert parameter_features(anatomy(given), "1.0.weight")["changed_alone"] == "called"
