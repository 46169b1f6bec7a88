"""What modules with extra state say and refuse, and which units have any."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Forward,
    Linear,
    Mode,
    Op,
    Plan,
    Rebuild,
    Sequential,
    StateDict,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.modules import ExtraState
from fsdpfuzz.case.modules.extra_state import numbers_of
from fsdpfuzz.case.operations.transfer import Transfer
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.tree import smaller_models
from tests.unit.case.test_units import fsdp1, fsdp2, make

ONCE: tuple[Op, ...] = (Forward(), Backward())
NODE = ExtraState(as_dict=True, counts=True)


def case(plan: Plan | None = None, node: ExtraState = NODE, **changes: Any) -> CaseSpec:
    model = Sequential(children=(Linear(out=4), node))
    return make(plan or fsdp2(""), **{"model": model, "program": ONCE, **changes})


def test_it_is_kept_as_it_is_and_made_plainer() -> None:
    given = case()
    check(given)
    assert decode(encode(given)) == given
    assert NODE.words() == ["dict", "counts"]
    assert ExtraState().words() == []
    assert [features(case(node=n))["extra_state"] for n in (NODE, ExtraState())] == [
        "dict",
        "tensor",
    ]
    plain = features(case(model=Linear(out=4)))
    assert (plain["extra_state"], features(given)["buffers"]) == ("no", "no")
    found = [found.model for found in smaller_models(given)]
    for plainer in NODE.simpler():
        assert Sequential(children=(Linear(out=4), plainer)) in found
    assert list(ExtraState().simpler()) == []


def test_what_evaluates_recomputes_no_count() -> None:
    recomputed = (Checkpoint(path="1"),)
    evaluated: tuple[Op, ...] = (*ONCE, Mode(train=False), Forward(grad=False))
    check(case(checkpoints=recomputed))
    check(case(program=evaluated))
    check(case(node=ExtraState(), checkpoints=recomputed, program=evaluated))
    with pytest.raises(CaseError, match=r"1\._extra_state\.calls"):
        check(case(checkpoints=recomputed, program=evaluated))


def test_an_entry_is_of_attributes() -> None:
    assert numbers_of("1.0._extra_state") == ("1.0.quarters", "1.0.calls")
    assert numbers_of("_extra_state.calls") == ("calls",)
    assert numbers_of("1.weight") == ()


def test_a_count_is_saved_and_taken_up_again() -> None:
    plan = fsdp2("")
    check(case(plan, program=(*ONCE, Rebuild(plan=plan), *ONCE)))


@pytest.mark.parametrize("op", [StateDict(), Transfer(), Rebuild(plan=fsdp1(""))])
def test_what_is_loaded_into_differs_in_it_as_well(op: Op) -> None:
    def steps(given: CaseSpec) -> str:
        return str(lower(anatomy(given)))

    given = case(fsdp1(""), program=(*ONCE, op))
    assert "steps.extra_state.blank" in steps(given)
    assert "steps.state_dict.blank" not in steps(given)
    plain = case(fsdp1(""), program=(*ONCE, op), model=Linear(out=4))
    assert "steps.extra_state" not in steps(plain)
    assert "steps.state_dict.blank" in steps(plain)


@pytest.mark.parametrize(
    ("plan", "program", "expected"),
    [
        (fsdp1("1", ""), ONCE, "on"),
        (fsdp2("", "1"), ONCE, "on"),
        (fsdp1("0", ""), ONCE, "off"),
        (fsdp1(""), (*ONCE, Rebuild(plan=fsdp1("1", ""))), "on"),
    ],
)
def test_units_that_have_some_of_their_own(
    plan: Plan, program: tuple[Op, ...], expected: str
) -> None:
    assert features(case(plan, program=program))["own_state"] == expected
