"""Units that a backward without reduction meets before they are called."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    Flip,
    Forward,
    Linear,
    Op,
    Sequential,
    Switch,
    anatomy,
    unit_features,
)
from fsdpfuzz.case.hazards.unit_calls import late_units, units_forgotten
from fsdpfuzz.case.modules import Keyed
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL = Switch(children=(Linear(out=4), Linear(out=4)))
NO_SYNC = (Forward(sync=False), Backward())
OTHER = Forward(grad=False, target="branches.1")


@pytest.mark.parametrize(
    ("program", "late"),
    [
        (NO_SYNC, {"branches.1"}),
        ((*NO_SYNC, OTHER), {"branches.1"}),
        ((OTHER, *NO_SYNC), set()),
        ((Forward(), Backward()), set()),
        ((Forward(), Backward(), *NO_SYNC), {"branches.1"}),
        ((*NO_SYNC, Flip(path="", ranks=(0, 1)), *NO_SYNC), {"branches.1"}),
        ((Forward(), Flip(path="", ranks=(1,)), Forward(), Backward()), set()),
        ((Forward(sync=False), Forward(grad=False), Backward()), {"branches.1"}),
    ],
)
def test_a_unit_that_was_not_called_by_then(program: tuple[Op, ...], late: set[str]) -> None:
    a = anatomy(make(fsdp2("", "branches.0", "branches.1"), model=MODEL, program=program))
    assert late_units(a) == late
    assert unit_features(a, "branches.1")["late"] == ("on" if late else "off")
    assert unit_features(a, "branches.0")["late"] == "off"


def test_what_lies_in_a_module_that_is_brought_along_is_called_with_it() -> None:
    """The program may call the inner module of a `Keyed` by itself."""
    keyed = Keyed(body=Sequential(children=(Linear(out=4), Linear(out=4))))
    forward = Forward(grad=False, target="inner")
    a = anatomy(make(fsdp2("", "inner"), model=keyed, program=(forward,)))
    ((_, op, now),) = a.situations(0)
    assert isinstance(op, Forward)
    called = [call.path for call in a.calls(op, now)]
    assert called == ["inner", "inner.body", "inner.body.0", "inner.body.1"]


ALONE = Forward(target="1")
FROZEN = Sequential(children=(Linear(out=4), Linear(out=4)))


@pytest.mark.parametrize(
    ("program", "frozen", "forgotten"),
    [
        ((Forward(), Backward()), True, False),
        ((Forward(), ALONE, Backward()), True, True),
        # By the last call before the backward.
        ((ALONE, Forward(), Backward()), True, False),
        ((Forward(), ALONE, Forward(), Backward()), True, False),
        ((Forward(), Backward(), ALONE, Backward()), True, False),
        ((Forward(), Forward(target="1", drop=True), Backward()), True, True),
        # Without grad nothing is taken back, and a trained unit's output requires grad.
        ((Forward(), Forward(target="1", grad=False), Backward()), True, False),
        ((Forward(), ALONE, Backward()), False, False),
    ],
)
def test_a_unit_of_which_the_last_output_requires_no_grad(
    program: tuple[Op, ...], frozen: bool, forgotten: bool
) -> None:
    names = ("1.weight", "1.bias") if frozen else ()
    a = anatomy(make(fsdp1("", "1"), model=FROZEN, frozen=names, program=program))
    assert units_forgotten(a) == ({"1"} if forgotten else set())
    assert unit_features(a, "1")["forgotten"] == ("on" if forgotten else "off")
    b = anatomy(make(fsdp2("", "1"), model=FROZEN, frozen=names, program=program))
    assert units_forgotten(b) == set()
