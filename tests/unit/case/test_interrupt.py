"""What an exception in a forward says, refuses and lowers to, and which units it leaves open."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Method,
    Plan,
    Repeat,
    Sequential,
    Step,
    Switch,
    anatomy,
    check,
    features,
    lower,
    unit_features,
)
from fsdpfuzz.case.operations import Op, Reshard, StateDict, Unshard
from fsdpfuzz.case.operations.interrupt import Interrupt
from fsdpfuzz.case.recipe import MODEL, Call, Do, Index, Inside, Operation, With, call
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import backward_reshards, order_warnings, traffic
from fsdpfuzz.reduce import simpler
from tests.unit.case.test_units import fsdp1, fsdp2, make

INNER = Sequential(children=(Linear(out=4), Linear(out=4)))
MODEL_OF_TWO = Sequential(children=(Linear(out=4), INNER, Linear(out=4)))
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
AHEAD = fsdp1("0", "1", "2", forward_prefetch=True)
RAISED = Interrupt(module="1.0", done=True)


def case(plan: Plan, *program: Op, **changes: Any) -> CaseSpec:
    return make(plan, **({"model": MODEL_OF_TWO, "program": program} | changes))


def raised(plan: Plan, op: Interrupt = RAISED, **changes: Any) -> CaseSpec:
    given = case(plan, *TRAIN, op, *TRAIN, **changes)
    check(given)
    return given


def unfinished(plan: Plan, op: Interrupt, **changes: Any) -> dict[str, str]:
    a = anatomy(raised(plan, op, **changes))
    found = {path: unit_features(a, path)["unfinished"] for path in a.units}
    return {path: value for path, value in found.items() if value != "off"}


def test_the_batch_is_the_next_ones_and_the_exception_is_caught() -> None:
    recipe = lower(anatomy(raised(fsdp2(""))))
    operation = [s for s in recipe.main if isinstance(s, Operation)][3]
    given, within = operation.body
    assert isinstance(given, Do)
    assert isinstance(given.call, Call)
    assert Index(1) in given.call.args
    caught = call("steps.interrupt.interrupted", Inside("model", "1.0"), True)
    ran = Do(call=Call(MODEL, (given.into[0],)))
    assert within == With(context=caught, body=(ran,))
    assert RAISED.words() == "exception at the end of 1.0"
    assert Interrupt().words() == "exception at the begin of the root"


def test_its_features() -> None:
    begin = Interrupt()
    assert features(case(fsdp2(""), *TRAIN))["interrupted"] == "no"
    assert features(raised(fsdp2("")))["interrupted"] == "end"
    assert features(raised(fsdp2(""), begin))["interrupted"] == "begin"
    both = case(fsdp2(""), begin, RAISED, *TRAIN)
    check(both)
    assert features(both)["interrupted"] == "several"


def test_plainer_are_none_and_that_of_a_module_around() -> None:
    given = raised(fsdp2(""))
    programs = [plainer.case.program for plainer in simpler(given)]
    assert (*TRAIN, *TRAIN) in programs
    for plainer in (
        Interrupt(module="1.0"),
        Interrupt(module="1", done=True),
        Interrupt(done=True),
    ):
        assert (*TRAIN, plainer, *TRAIN) in programs


@pytest.mark.parametrize(
    ("plan", "op", "units"),
    [
        (fsdp1("", "1", "1.0"), Interrupt(module="1.0"), {"": "on", "1": "on", "1.0": "on"}),
        (fsdp1("", "1", "1.0"), RAISED, {"": "on", "1": "on", "1.0": "on"}),
        (fsdp2("", "1", "1.0"), Interrupt(module="1.0"), {"": "on", "1": "on", "1.0": "on"}),
        # What FSDP does at the end comes before a hook of the user.
        (fsdp2("", "1", "1.0"), RAISED, {"": "on", "1": "on"}),
        (fsdp2("", "1", "2"), Interrupt(module="2"), {"": "on", "2": "on"}),
        (fsdp2("", "0"), Interrupt(), {"": "on"}),
        (fsdp2("", "0"), Interrupt(done=True), {}),
        (fsdp1("0", "1", "2"), Interrupt(done=True), {}),
        (AHEAD, Interrupt(module="1"), {"1": "on", "2": "ahead"}),
    ],
)
def test_units_that_are_left_unfinished(plan: Plan, op: Interrupt, units: dict[str, str]) -> None:
    assert unfinished(plan, op) == units


def test_a_group_is_unfinished_until_the_last_of_its_modules_is_done() -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1.0", grouped=("1.1",))))
    assert unfinished(plan, RAISED) == {"": "on", "1.0": "on"}
    assert unfinished(plan, Interrupt(module="2")) == {"": "on"}


def test_the_first_call_of_several_raises() -> None:
    model = Repeat(body=Linear(out=4), times=3)
    assert unfinished(fsdp2("", "body"), Interrupt(module="body"), model=model) == {
        "": "on",
        "body": "on",
    }


@pytest.mark.parametrize(
    ("plan", "program", "words"),
    [
        (fsdp2(""), (Interrupt(module="3"), *TRAIN), "no module"),
        (fsdp2(""), (*TRAIN, RAISED), "comes next"),
        (fsdp1(""), (Forward(), Backward(), RAISED, Step()), "comes next"),
        (fsdp1(""), (RAISED, StateDict(), *TRAIN), "comes next"),
        (fsdp2(""), (RAISED, Forward(grad=False), *TRAIN), "comes next"),
        (fsdp2("0"), (*TRAIN, RAISED, Forward(target="0"), Backward()), "comes next"),
        (fsdp1(""), (RAISED, Forward(sync=False), Backward(), *TRAIN), "comes next"),
        (fsdp2(""), (Unshard(unit=""), RAISED, *TRAIN), "comes next"),
        (fsdp2(""), (RAISED, Reshard(unit=""), *TRAIN), "comes next"),
    ],
)
def test_what_cannot_come_after_it_is_refused(
    plan: Plan, program: tuple[Op, ...], words: str
) -> None:
    with pytest.raises(CaseError, match=words):
        check(case(plan, *program))


def test_only_what_all_ranks_call_raises() -> None:
    switch = Switch(children=(Linear(out=4), Linear(out=4)))
    model = Sequential(children=(Linear(out=4), switch))
    with pytest.raises(CaseError, match="each rank calls ''"):
        check(case(fsdp2(""), Interrupt(), *TRAIN, model=model))
    method = Sequential(children=(Method(body=Linear(out=4)), Linear(out=4)))
    check(case(fsdp2(""), Interrupt(module="0"), *TRAIN, model=method))
    with pytest.raises(CaseError, match=r"each rank calls '0\.inner'"):
        check(case(fsdp2(""), Interrupt(module="0.inner"), *TRAIN, model=method))


def test_fsdp2_may_leave_the_next_gradients_unreduced() -> None:
    check(case(fsdp2(""), RAISED, Forward(sync=False), Backward(), *TRAIN))


def test_units_may_be_whole_or_sharded_after_it() -> None:
    plan = fsdp2("", "0", "1", "2")
    before, after = (traffic(anatomy(c), 0) for c in (case(plan, *TRAIN, *TRAIN), raised(plan)))
    assert set(after) == {0, 1, 4, 5}
    assert {number.least for number in before[3].numbers.values()} == {1, 2}
    assert {number.least for number in after[4].numbers.values()} == {0}
    told = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", reshard_after_forward=2)))
    assert set(traffic(anatomy(raised(told)), 0)) == {0, 1}


def test_fsdp1s_hooks_and_order_promise_nothing() -> None:
    plan = fsdp1("", "1")
    assert isinstance(plan, Fsdp1Plan)
    given = msgspec.structs.replace(raised(plan), debug_level="DETAIL")
    assert backward_reshards(anatomy(given), 0) is None
    assert order_warnings(anatomy(given)) is None
