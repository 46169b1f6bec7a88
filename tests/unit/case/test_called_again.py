"""Units that are called again, and parameters that are read or frozen at one time alone."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    Checkpoint,
    Forward,
    Idle,
    Linear,
    Op,
    Rebuild,
    RequiresGrad,
    Sequential,
    Tie,
    anatomy,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.hazards.unit_calls import units_called_again
from fsdpfuzz.case.modules import LayerDrop
from fsdpfuzz.case.operations import StateDict
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=4), Linear(out=4)))
ONCE: tuple[Op, ...] = (Forward(), Backward())
FREEZE = RequiresGrad(parameters=("0.weight",), value=False)
THAW = RequiresGrad(parameters=("0.weight",), value=True)


TWICE_BEFORE: tuple[Op, ...] = (Forward(), *ONCE)
AGAIN_OVER_IT: tuple[Op, ...] = (Forward(), Backward(again=True))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ONCE, {}),
        ((*ONCE, *ONCE), {}),
        ((*TWICE_BEFORE, *ONCE), {"": False, "1": False}),
        ((*ONCE, *TWICE_BEFORE), {"": True, "1": True}),
        # A forward without a backward is in the iteration of the next one.
        ((*ONCE, Forward(grad=False), Forward()), {"": True, "1": True}),
        # What is wrapped anew begins with a first iteration.
        ((*ONCE, Rebuild(plan=fsdp1("", "1")), *TWICE_BEFORE), {"": False, "1": False}),
    ],
)
def test_units_that_are_called_again_in_the_first_iteration_or_later(
    program: tuple[Op, ...], expected: dict[str, bool]
) -> None:
    a = anatomy(make(fsdp1("", "1"), model=LAYERS, program=program))
    assert units_called_again(a) == expected
    later = {path: unit_features(a, path)["called_again_later"] for path in a.units}
    assert later == {path: "on" if expected.get(path) else "off" for path in a.units}


@pytest.mark.parametrize(
    ("program", "later"), [(ONCE, False), ((*ONCE, *ONCE), True), (AGAIN_OVER_IT, True)]
)
def test_a_checkpoint_calls_again_what_is_in_it(program: tuple[Op, ...], later: bool) -> None:
    checkpoint = Checkpoint(path="1", side="around")
    case = make(fsdp1("", "1"), model=LAYERS, program=program, checkpoints=(checkpoint,))
    assert units_called_again(anatomy(case)) == {"1": later}


@pytest.mark.parametrize(("start", "expected"), [(1, "off"), (2, "on")])
def test_a_tied_parameter_is_read_where_one_of_its_names_is(start: int, expected: str) -> None:
    model = LayerDrop(children=(Idle(), Linear(out=4, bias=False)), start=start)
    tie = Tie(source="layers.0.idle.weight", target="layers.1.weight")
    case = make(fsdp1("", use_orig_params=True), model=model, ties=(tie,), program=ONCE)
    # The first forward leaves out the first child, or the second, which alone reads the weight.
    assert unit_features(anatomy(case), "")["quiet"] == expected


LEAVES_OUT = StateDict(ignore_frozen=True)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((FREEZE, LEAVES_OUT), ["0.weight"]),
        ((FREEZE, StateDict()), []),
        ((LEAVES_OUT, FREEZE), []),
        ((FREEZE, THAW, LEAVES_OUT), []),
        ((FREEZE, LEAVES_OUT, THAW), ["0.weight"]),
    ],
)
def test_a_parameter_is_frozen_while_a_state_dict_leaves_that_out(
    program: tuple[Op, ...], expected: list[str]
) -> None:
    a = anatomy(make(fsdp2(""), model=LAYERS, program=program))
    told = {p.fqn: parameter_features(a, p.fqn)["left_out_frozen"] for p in a.parameters}
    assert [fqn for fqn, value in told.items() if value == "on"] == expected
