"""State dicts of fsdp2 without what is frozen by then."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Linear,
    Op,
    Sequential,
    StateDict,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.operations import RequiresGrad
from fsdpfuzz.case.operations.state_dict import left_out, saved_of
from fsdpfuzz.case.recipe import Call, Do, Operation, Variable
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import state_keys
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import fsdp1, fsdp2, make

LESS = StateDict(ignore_frozen=True)
MODEL = Sequential(children=(Linear(out=2, bias=False),) * 2)
WEIGHTS = ("0.weight", "1.weight")


def case(*program: Op, **changes: object) -> CaseSpec:
    given = {"model": MODEL, "frozen": ("0.weight",), "program": program, **changes}
    return make(given.pop("plan", fsdp2("")), **given)  # type: ignore[arg-type]


def test_it_goes_into_json_and_changes_no_other_case() -> None:
    check(case(LESS))
    assert decode(encode(case(LESS))) == case(LESS)
    assert b"ignore" not in encode(case(StateDict()))
    assert features(case(LESS))["state_frozen"] == "left out"
    assert features(case(StateDict()))["state_frozen"] == "saved"
    assert "state_frozen" not in features(case(StateDict(), plan=fsdp1("")))


def test_fsdp1_has_no_such_option() -> None:
    with pytest.raises(CaseError, match="an option of fsdp2 alone") as caught:
        check(case(LESS, plan=fsdp1("")))
    assert caught.value.path == "$.program[0].ignore_frozen"


def test_what_is_frozen_by_then_is_left_out() -> None:
    thawed = RequiresGrad(parameters=("0.weight",), value=True)
    frozen = RequiresGrad(parameters=("1.weight",), value=False)
    a = anatomy(case(LESS, StateDict(), thawed, LESS, frozen, LESS))
    assert [left_out(a, at) for at in (0, 1, 3, 5)] == [
        frozenset({"0.weight"}),
        frozenset(),
        frozenset(),
        frozenset({"1.weight"}),
    ]
    assert left_out(a, 2) == frozenset()
    saved = saved_of(a, 0, WEIGHTS)
    assert state_keys(a, saved, LESS, absent=False) == {"1.weight"}


def test_a_tied_one_is_left_out_by_both_of_its_names() -> None:
    tied = case(LESS, ties=(Tie(source="0.weight", target="1.weight"),))
    assert left_out(anatomy(tied), 0) == {"0.weight", "1.weight"}


def test_it_is_loaded_as_it_was_saved() -> None:
    (body,) = [s.body for s in lower(anatomy(case(LESS))).main if isinstance(s, Operation)]
    asked = {
        do.call.function: dict(do.call.options)
        for do in body
        if isinstance(do, Do) and isinstance(do.call, Call) and do.into != (Variable("loaded"),)
    }
    assert asked["steps.fsdp2.state_dict.save"]["ignore_frozen"] is True
    assert asked["steps.fsdp2.state_dict.load"]["ignore_frozen"] is True


def test_with_all_of_it_is_plainer() -> None:
    plainer = [s for s in simpler(case(*ITERATION, LESS)) if s.words == "ignore_frozen_params"]
    assert [s.case.program[-1] for s in plainer] == [StateDict()]


def test_a_script_says_so() -> None:
    script = render(case(LESS), None, Context())
    compile(script, "repro.py", "exec")
    assert "options.ignore_frozen_params = True" in script
    assert "options.strict = False" in script
    assert "ignore_frozen" not in render(case(StateDict()), None, Context())
