"""What is trained once a switch has moved on."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Optimizer,
    Plan,
    Step,
    Switch,
    ZeroGrad,
    anatomy,
    check,
    lower,
)
from fsdpfuzz.case.recipe import Do, walk
from tests.injected.by_hand import judged

ONCE = (Forward(), Backward(), Step())


def case(plan: Plan) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Switch(children=(Linear(out=1, bias=False), Linear(out=1, bias=False))),
        inputs=Dense(width=1),
        plan=plan,
        optimizer=Optimizer(lr=0.01),
        program=(*ONCE, ZeroGrad(), Flip(path="", ranks=(0, 1)), *ONCE),
    )


def units(*paths: str, original: bool = False) -> Fsdp1Plan:
    return Fsdp1Plan(units=tuple(Fsdp1Unit(path=p, use_orig_params=original) for p in paths))


FLAT = case(units(""))
APART = (
    case(units("", "branches.0", "branches.1")),
    case(units("", original=True)),
    case(Fsdp2Plan(units=(Fsdp2Unit(path=""),))),
)


def trained_at_last(given: CaseSpec) -> list[str]:
    (*_, (_, _, now)) = anatomy(given).situations(0)
    return [name for name, on in now.trained.items() if on]


def test_a_part_of_a_flat_parameter_is_not_frozen_alone() -> None:
    check(FLAT)
    assert trained_at_last(FLAT) == ["branches.0.weight", "branches.1.weight"]


@pytest.mark.parametrize("given", APART)
def test_the_branch_that_was_active_is_frozen(given: CaseSpec) -> None:
    check(given)
    assert trained_at_last(given) == ["branches.1.weight"]


@pytest.mark.parametrize(("given", "kept"), [(FLAT, True), *((one, False) for one in APART)])
def test_the_plain_model_keeps_what_fsdp_cannot_freeze(given: CaseSpec, kept: bool) -> None:
    (flip,) = (
        statement.call
        for statement in walk(lower(anatomy(given)).main)
        if isinstance(statement, Do) and "flip" in str(statement.call)
    )
    assert ("kept" in str(flip)) == kept


# With momentum the branch that is not used any more still moves.
@pytest.mark.parametrize("given", [FLAT, *APART])
def test_it_trains_as_without_fsdp(given: CaseSpec) -> None:
    verdict = judged(given)
    assert [finding.key for finding in verdict.findings] == []
    assert verdict.status == "passed"
