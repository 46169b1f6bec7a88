"""What starting over says, refuses and lowers to, and which units hold gradients by then."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Rebuild,
    Sequential,
    Step,
    Switch,
    ZeroGrad,
    anatomy,
    check,
    features,
    lower,
    needs_of_torch,
    unit_features,
)
from fsdpfuzz.case.operations import Op
from fsdpfuzz.case.operations.recover import Recover
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Operation, With, call
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import traffic
from fsdpfuzz.reduce import simpler
from tests.unit.case.test_units import fsdp1, fsdp2, make

INNER = Sequential(children=(Linear(out=4), Linear(out=4)))
MODEL_OF_TWO = Sequential(children=(Linear(out=4), INNER, Linear(out=4)))
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step(), ZeroGrad())
UNREDUCED: tuple[Op, ...] = (Forward(sync=False), Backward())
INSIDE = Recover(module="1.0")


def case(plan: Plan, *program: Op, **changes: Any) -> CaseSpec:
    return make(plan, **({"model": MODEL_OF_TWO, "program": program} | changes))


def recovered(op: Recover, plan: Plan | None = None) -> CaseSpec:
    given = case(plan or fsdp2("", "0"), *TRAIN, op, *TRAIN)
    check(given)
    return given


def body(op: Recover) -> tuple[list[Do], With]:
    """What one of them does around the failing, and in it."""
    recipe = lower(anatomy(recovered(op)))
    made = next(s for s in recipe.main if isinstance(s, Operation) and s.name == "recover").body
    (within,) = (s for s in made if isinstance(s, With))
    return [s for s in made if isinstance(s, Do)], within


def test_what_was_reduced_is_dropped_after_the_reset() -> None:
    around, within = body(INSIDE)
    assert around[1:] == [
        Do(call=call(".reset_iter_state", MODEL), who="fsdp"),
        Do(call=call(".zero_grad", MODEL)),
    ]
    assert within.context == call("steps.recover.failing", Inside("model", "1.0"))
    assert isinstance(within.body[-1], Do)
    assert getattr(within.body[-1].call, "function", "") == ".backward"
    assert INSIDE.words() == "exception in backward of 1.0, reset"


def test_in_forward_it_never_comes_to_a_loss() -> None:
    _, within = body(Recover(when="end"))
    assert within.context == call("steps.interrupt.interrupted", MODEL, True)
    assert len(within.body) == 1
    assert Recover(when="begin").words() == "exception at the begin of the root, reset"


@pytest.mark.parametrize("when", ["begin", "end", "gradient"])
def test_its_feature_and_what_it_needs_of_torch(
    when: Literal["begin", "end", "gradient"],
) -> None:
    given = recovered(Recover(when=when))
    assert features(given)["recovered"] == when
    assert needs_of_torch(anatomy(given)) == ("FSDPModule.reset_iter_state()",)


def test_without_one_no_newer_torch_is_needed() -> None:
    given = case(fsdp2(""), *TRAIN)
    assert features(given)["recovered"] == "no"
    assert needs_of_torch(anatomy(given)) == ()
    both = case(fsdp2(""), INSIDE, Recover(when="end"), *TRAIN)
    check(both)
    assert features(both)["recovered"] == INSIDE.when
    assert "recovered" not in features(case(fsdp1(""), *TRAIN))


def test_plainer_are_none_and_in_backward_and_that_of_a_module_around() -> None:
    programs = [s.case.program for s in simpler(recovered(Recover(module="1.0", when="end")))]
    assert (*TRAIN, *TRAIN) in programs
    for plainer in (INSIDE, Recover(module="1", when="end"), Recover(when="end")):
        assert (*TRAIN, plainer, *TRAIN) in programs


@pytest.mark.parametrize(
    ("plan", "program", "words"),
    [
        (fsdp1(""), (INSIDE, *TRAIN), "fsdp1 has no reset_iter_state"),
        (fsdp2("0"), (INSIDE, *TRAIN), "the root, which is no unit"),
        (fsdp2(""), (Recover(module="3"), *TRAIN), "no module"),
        (fsdp2(""), (Forward(), INSIDE, Forward(), Backward()), "waits for its backward"),
    ],
)
def test_where_it_is_refused(plan: Plan, program: tuple[Op, ...], words: str) -> None:
    with pytest.raises(CaseError, match=words):
        check(case(plan, *program))


def test_it_is_refused_where_ranks_may_differ_and_where_the_program_finishes_backwards() -> None:
    switch = Sequential(children=(Linear(out=4), Switch(children=(Linear(out=4), Linear(out=4)))))
    with pytest.raises(CaseError, match="each rank calls '0'"):
        check(case(fsdp2(""), Recover(module="0"), *TRAIN, model=switch))
    with pytest.raises(CaseError, match="finishes each backward"):
        check(case(fsdp2(""), INSIDE, *TRAIN, finalization="manual"))


def test_what_comes_after_it_is_free() -> None:
    check(case(fsdp2(""), *UNREDUCED, INSIDE, Step(), *TRAIN, INSIDE))


def abandoned(*program: Op, plan: Plan, **changes: Any) -> dict[str, str]:
    given = case(plan, *program, *TRAIN, **changes)
    check(given)
    a = anatomy(given)
    found = {path: unit_features(a, path)["abandoned"] for path in a.units}
    return {path: value for path, value in found.items() if value != "off"}


@pytest.mark.parametrize(
    ("plan", "op", "units"),
    [
        (fsdp2(""), INSIDE, {"": "half way"}),
        # Nothing is computed yet of what comes before the last output.
        (fsdp2(""), Recover(), {}),
        (fsdp2(""), Recover(module="2"), {}),
        (fsdp2("", "0", "1", "2"), INSIDE, {"1": "half way"}),
        (fsdp2("", "2"), Recover(module="1"), {}),
        (fsdp2("", "1.0", "1.1"), INSIDE, {"": "half way"}),
        (fsdp2(""), Recover(module="1.0", when="end"), {}),
    ],
)
def test_units_through_which_a_backward_goes_half_way(
    plan: Plan, op: Recover, units: dict[str, str]
) -> None:
    assert abandoned(op, plan=plan) == units


@pytest.mark.parametrize(("module", "held"), [("0", False), ("1", True), ("2", True), ("3", False)])
def test_a_unit_of_several_modules_ends_where_the_first_was_given_something(
    module: str, held: bool
) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1", grouped=("3",))))
    row = Sequential(children=(Linear(out=4), Linear(out=4), Linear(out=4), Linear(out=4)))
    found = abandoned(Recover(module=module), plan=plan, model=row)
    assert found.get("1") == ("half way" if held else None)


def test_a_unit_that_is_given_what_needs_no_gradient_ends_with_the_whole_backward() -> None:
    plan = fsdp2("", "1.1")
    frozen = ("0.weight", "0.bias", "1.0.weight", "1.0.bias")
    assert abandoned(Recover(module="1.0"), plan=plan, frozen=frozen) == {
        "": "half way",
        "1.1": "half way",
    }


def test_gradients_that_wait_are_of_all_units_until_a_backward_reduces_them() -> None:
    plan = fsdp2("", "0", "1", "2")
    at_once = Recover(when="begin")
    assert set(abandoned(*UNREDUCED, at_once, plan=plan).values()) == {"accumulated"}
    assert abandoned(*UNREDUCED, Forward(), Backward(), at_once, plan=plan) == {}
    assert abandoned(*UNREDUCED, at_once, at_once, plan=plan).keys() == {"0", "1", "2"}


def test_all_units_are_gathered_once_after_it() -> None:
    kept = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", reshard_after_forward=False)))
    lone = (Forward(grad=False), INSIDE, *TRAIN)
    found = traffic(anatomy(case(kept, *TRAIN, *lone)), 0)
    gathers = [
        number for text, number in found[len(TRAIN) + 2].numbers.items() if "all_gather" in text
    ]
    assert [(number.least, number.most) for number in gathers] == [(1, 1), (1, 1)]


def test_the_tracker_does_not_follow_it() -> None:
    given = msgspec.structs.replace(recovered(INSIDE), probes=("mem_tracker",))
    with pytest.raises(CaseError, match="mem_tracker"):
        check(given)


def test_inputs_that_need_a_gradient_give_each_unit_its_end() -> None:
    given = Dense(width=4, requires_grad=True)
    plan = fsdp2("", "1.1")
    frozen = ("0.weight", "0.bias", "1.0.weight", "1.0.bias")
    assert abandoned(INSIDE, plan=plan, frozen=frozen, inputs=given) == {"": "half way"}


REPLICA = Fsdp2Plan(
    units=(
        Fsdp2Unit(path="", replicated=True),
        Fsdp2Unit(path="0"),
        Fsdp2Unit(path="1"),
        Fsdp2Unit(path="1.0"),
    )
)


@pytest.mark.parametrize(
    ("program", "early"),
    [
        ((Recover(module="0", when="begin"),), {"1"}),
        ((Recover(module="", when="begin"),), {"0", "1"}),
        ((Recover(module="0", when="end"),), {"1"}),
        ((Recover(module="1", when="begin"),), set()),
        ((Recover(module="0"),), set()),
        ((Forward(grad=False), Recover(module="0", when="begin")), set()),
        (
            (Forward(grad=False), Rebuild(plan=REPLICA), Recover(module="0", when="begin")),
            {"1"},
        ),
    ],
)
def test_roots_that_start_over_before_any_forward(program: tuple[Op, ...], early: set[str]) -> None:
    given = case(REPLICA, *program)
    check(given)
    a = anatomy(given)
    assert {path for path in a.units if unit_features(a, path)["reset_early"] == "on"} == early
