"""State dicts of which fsdp1 was told the form for good."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Op,
    Plan,
    Rebuild,
    StateDict,
    Step,
    anatomy,
    check,
    features,
    lower,
)
from fsdpfuzz.case.recipe import MODEL, Do, Operation, Variable, call
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from tests.unit.case.test_units import fsdp1, fsdp2, make

TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
SET = StateDict(form="sharded", given="set")
KEPT = StateDict(form="sharded", given="kept")
ON_RANK_0 = StateDict(rank0_only=True, given="set")


def case(*program: Op, plan: Plan | None = None) -> CaseSpec:
    return make(plan or fsdp1(""), program=program)


def calls(given: CaseSpec) -> list[object]:
    """What the state dicts of a case call, without what builds the models that load them."""
    bodies = [s.body for s in lower(anatomy(given)).main if isinstance(s, Operation)]
    return [
        do.call
        for body in bodies
        for do in body
        if isinstance(do, Do) and do.into != (Variable("loaded"),)
    ]


def test_what_is_set_serves_those_that_follow_and_the_model_that_loads() -> None:
    state, loaded, sharded = Variable("state"), Variable("loaded"), "sharded"
    room = "steps.fsdp1.state_dict"
    load = [
        call(f"{room}.set_form", loaded, sharded),
        call(".load_state_dict", loaded, state),
    ]
    assert calls(case(SET, KEPT)) == [
        call(f"{room}.set_form", MODEL, sharded),
        call(".state_dict", MODEL),
        *load,
        call(".state_dict", MODEL),
        *load,
    ]
    told = call(f"{room}.set_form", MODEL, "full", rank0_only=True)
    assert calls(case(ON_RANK_0))[0] == told
    assert [op.words() for op in (SET, KEPT)] == [
        "state_dict sharded set",
        "state_dict sharded kept",
    ]


@pytest.mark.parametrize(
    "program",
    [
        (SET, KEPT),
        (SET, *TRAIN, KEPT),
        (SET, StateDict(), KEPT, KEPT),
        (ON_RANK_0, SET, KEPT),
    ],
)
def test_the_form_is_kept(program: tuple[Op, ...]) -> None:
    given = case(*program)
    check(given)
    assert features(given)["state_form"] == "kept"


@pytest.mark.parametrize(
    "program",
    [
        (KEPT,),
        (StateDict(form="sharded"), KEPT),
        (SET, StateDict(given="kept")),
        (SET, ON_RANK_0, KEPT),
        (SET, StateDict(form="sharded", cpu_offload=True, given="kept")),
        (*TRAIN, SET, Rebuild(plan=fsdp1("")), KEPT),
    ],
)
def test_it_is_the_form_that_was_set_last_of_the_same_model(program: tuple[Op, ...]) -> None:
    with pytest.raises(CaseError, match="set last is another one"):
        check(case(*program))


def test_it_is_fsdp1s() -> None:
    with pytest.raises(CaseError, match="an option of fsdp1 alone"):
        check(case(SET, plan=fsdp2("")))
    assert "state_form" not in features(case(StateDict(), plan=fsdp2("")))
    assert features(case(StateDict()))["state_form"] == "context"
    assert features(case(SET, StateDict()))["state_form"] == "set"


def test_in_a_context_is_plainer() -> None:
    programs = [plainer.case.program for plainer in simpler(case(SET, KEPT))]
    assert (StateDict(form="sharded"),) * 2 in programs
