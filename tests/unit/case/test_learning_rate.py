"""What a change of the learning rate says, refuses and lowers to, and what it does to rounding."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Optimizer,
    Step,
    anatomy,
    check,
    features,
    lower,
)
from fsdpfuzz.case.operations.learning_rate import LearningRate
from fsdpfuzz.case.recipe import OPTIMIZER, Do, Operation, call
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import adaptive_wobble
from fsdpfuzz.reduce import simpler

TRAINED = (Forward(), Backward(), Step())
LOWER, HIGHER = LearningRate(factor=0.5), LearningRate(factor=2.0)


def case(*program: Op, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Linear(out=3),
        "inputs": Dense(width=2),
        "plan": Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        "program": program,
    }
    return CaseSpec(**values | changes)


def changed(given: CaseSpec) -> list[Do]:
    return [
        do
        for s in lower(anatomy(given)).main
        if isinstance(s, Operation) and s.name == "learning_rate"
        for do in s.body
        if isinstance(do, Do)
    ]


def test_each_group_is_multiplied_by_fsdp_and_by_the_reference() -> None:
    given = case(*TRAINED, LOWER, *TRAINED)
    check(given)
    assert changed(given) == [Do(call=call("steps.learning_rate.multiply", OPTIMIZER, 0.5))]
    assert LOWER.words() == "learning rate times 0.5"


def test_nothing_is_done_where_a_variant_leaves_the_optimizer_no_parameter() -> None:
    given = case(*TRAINED, LOWER, *TRAINED, held_out=("weight", "bias"))
    check(given)
    assert changed(given) == []


@pytest.mark.parametrize(
    ("ops", "value"),
    [
        ((), "fixed"),
        ((LOWER, LOWER), "lowered"),
        ((HIGHER,), "raised"),
        ((LOWER, HIGHER), "both"),
    ],
)
def test_its_feature(ops: tuple[Op, ...], value: str) -> None:
    assert features(case(*TRAINED, *ops, *TRAINED))["learning_rate"] == value


def test_it_is_refused_where_no_optimizer_steps() -> None:
    for given in (
        case(*TRAINED[:2], LOWER),
        case(*TRAINED[:2], LOWER, optimizer=None),
    ):
        with pytest.raises(CaseError, match="no optimizer steps") as refused:
            check(given)
        assert refused.value.path == "$.program[2]"


def test_it_is_refused_where_nothing_changes_and_beyond_what_a_rate_may_be() -> None:
    with pytest.raises(CaseError, match="1 changes nothing"):
        check(case(LearningRate(factor=1.0), *TRAINED))
    tenfold = LearningRate(factor=10.0)
    check(case(tenfold, tenfold, *TRAINED))
    with pytest.raises(CaseError, match="becomes 50, above 10"):
        check(case(tenfold, tenfold, tenfold, *TRAINED))


def test_the_tracker_does_not_follow_it() -> None:
    with pytest.raises(CaseError, match="mem_tracker"):
        check(case(*TRAINED, LOWER, *TRAINED, probes=("mem_tracker",)))


def test_plainer_are_none_and_one_that_halves() -> None:
    programs = [plainer.case.program for plainer in simpler(case(*TRAINED, HIGHER, *TRAINED))]
    assert (*TRAINED, *TRAINED) in programs
    assert (*TRAINED, LOWER, *TRAINED) in programs


# Adam's steps are so large as the rate is, whatever the gradient.
def test_rounding_is_carried_as_far_as_the_steps_are_large() -> None:
    adam = Optimizer(name="adam", lr=0.01)
    before, after = (HIGHER, *TRAINED), (*TRAINED, HIGHER)

    def wobble(*program: Op) -> float:
        return adaptive_wobble(case(*program, optimizer=adam), len(program) - 1)

    assert wobble(*before) == 2 * wobble(*TRAINED)
    assert wobble(*after) == wobble(*TRAINED)
    assert wobble(*after, *TRAINED) == 3 * wobble(*TRAINED)
