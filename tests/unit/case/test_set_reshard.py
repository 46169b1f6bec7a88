"""`set_reshard_after_forward` in a program: what it says, changes, refuses and lowers to."""

from __future__ import annotations

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
    Sequential,
    Step,
    anatomy,
    check,
    decode,
    encode,
    features,
    needs_of_torch,
    unit_features,
)
from fsdpfuzz.case.hazards.set_on_fewer import set_on_fewer
from fsdpfuzz.case.operations import Reshard, SetReshard
from fsdpfuzz.case.recipe import MODEL
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_by_hand import calls

SECOND = Fsdp2Plan(
    units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", grouped=("2",)), Fsdp2Unit(path="1"))
)
FIRST = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
WHOLE = SetReshard(unit="", reshard=False)
BACK = SetReshard(unit="1", reshard=True, recurse=False)
FREE = Forward(grad=False)


def case(*program: Op, plan: Plan = SECOND) -> CaseSpec:
    return CaseSpec(
        world_size=4,
        model=Sequential(children=(Linear(out=2), Linear(out=2), Linear(out=2))),
        inputs=Dense(width=2),
        plan=plan,
        program=program,
    )


def options(given: CaseSpec, op: int) -> dict[str, object]:
    return {p: u.reshard_after_forward for p, u in anatomy(given).at(op).fsdp2_options.items()}


def test_it_changes_the_plan_from_there_on() -> None:
    given = case(FREE, WHOLE, FREE, BACK, FREE)
    check(given)
    assert decode(encode(given)) == given
    assert options(given, 0) == {"": None, "0": None, "1": None}
    assert options(given, 2) == {"": False, "0": False, "1": False}
    assert options(given, 4) == {"": False, "0": False, "1": True}
    assert calls(given, 1) == [(".set_reshard_after_forward", (MODEL, False))]
    assert features(given)["reshard_set"] == "both"
    assert needs_of_torch(anatomy(given)) == ("FSDPModule.set_reshard_after_forward()",)
    assert not needs_of_torch(anatomy(case(FREE)))


def test_a_module_of_a_group_reaches_the_group() -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="0", grouped=("2",)), Fsdp2Unit(path="1")))
    told = SetReshard(unit="0", reshard=False)
    assert options(case(told, plan=plan), 0) == {"0": False, "1": None}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (case(WHOLE, plan=FIRST), "fsdp2 alone"),
        (case(SetReshard(unit="2", reshard=True)), "has no unit '2'"),
        (case(WHOLE, plan=Fsdp2Plan(units=(Fsdp2Unit(path="", replicated=True),))), "replicated"),
    ],
)
def test_what_contradicts_itself_is_refused(given: CaseSpec, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        check(given)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((FREE, SetReshard(unit="1", reshard=False), FREE), {"1"}),
        ((Forward(), SetReshard(unit="1", reshard=False), Backward()), {"1"}),
        # Of what is set first a forward knows.
        ((SetReshard(unit="1", reshard=False), FREE, FREE), set()),
        ((FREE, SetReshard(unit="1", reshard=True), FREE), set()),
        ((FREE, Reshard(unit="1"), SetReshard(unit="1", reshard=False), FREE), set()),
        ((Forward(), Backward(), SetReshard(unit="1", reshard=False), FREE), set()),
    ],
)
def test_where_a_unit_lies_on_fewer_ranks(program: tuple[Op, ...], expected: set[str]) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1", reshard_after_forward=2)))
    a = anatomy(case(*program, plan=plan))
    assert set_on_fewer(a) == expected
    assert unit_features(a, "1")["set_on_fewer"] == ("on" if expected else "off")


def test_what_a_unit_is_left_as_later_on_counts_too() -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1", reshard_after_forward=False)))
    iteration = (Forward(), Backward())
    told = SetReshard(unit="1", reshard=True)
    for program, freed in ((iteration * 2, "off"), ((*iteration, told, *iteration), "on")):
        a = anatomy(case(*program, plan=plan))
        assert unit_features(a, "1")["freed"] == freed


def test_a_unit_that_is_told_to_stay_whole_is_stepped_so() -> None:
    sharded = Fsdp2Plan(units=(Fsdp2Unit(path="", reshard_after_forward=True),))
    evaluated = (Forward(), Backward(), FREE, Step(), Forward(), Backward())
    assert features(case(*evaluated, plan=sharded))["stepped_whole"] == "off"
    assert features(case(WHOLE, *evaluated, plan=sharded))["stepped_whole"] == "on"
