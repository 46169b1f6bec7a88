"""What `apply` says, refuses, lowers to and gathers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Given,
    Idle,
    Imported,
    Linear,
    Op,
    Optimizer,
    Plan,
    Precision,
    Sequential,
    Step,
    Tie,
    Variant,
    ZeroGrad,
    anatomy,
    check,
    features,
    lower,
)
from fsdpfuzz.case.modules import ImportedModule, ImportedParameter
from fsdpfuzz.case.operations import Apply
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Operation, call
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import traffic
from fsdpfuzz.loop._hypothesis import drive
from fsdpfuzz.reduce import simpler
from fsdpfuzz.strategies import cases
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL_OF_TWO = Sequential(children=(Linear(out=4), Linear(out=4)))
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
BELOW = Apply(module="1", smooth=True)


def case(plan: Plan, *program: Op, **changes: Any) -> CaseSpec:
    return make(plan, **({"model": MODEL_OF_TWO, "program": program} | changes))


def sound(plan: Plan, *program: Op, **changes: Any) -> CaseSpec:
    given = case(plan, *program, **changes)
    check(given)
    return given


def test_it_is_called_alike_on_fsdps_model_and_on_the_plain_one() -> None:
    recipe = lower(anatomy(sound(fsdp1("", "1"), *TRAIN, Apply(), BELOW)))
    bodies = [s.body for s in recipe.main if isinstance(s, Operation) and s.name == "apply"]
    assert bodies == [
        (Do(call=call("steps.apply.scaled", MODEL)),),
        (Do(call=call("steps.apply.smoothed", Inside("model", "1"))),),
    ]
    assert [op.words() for op in (Apply(), BELOW)] == ["apply", "apply to 1, smooth"]


@pytest.mark.parametrize(
    ("ops", "done", "below"),
    [
        ((), "no", "off"),
        ((Apply(),), "scaled", "off"),
        ((BELOW,), "smoothed", "on"),
        ((Apply(), BELOW), "several", "on"),
    ],
)
def test_its_features(ops: tuple[Op, ...], done: str, below: str) -> None:
    found = features(sound(fsdp2("", "1"), *ops, *TRAIN))
    assert (found["applied"], found["applied_below"]) == (done, below)


def test_plainer_are_none_that_of_the_root_and_a_product() -> None:
    programs = [plainer.case.program for plainer in simpler(sound(fsdp1("", "1"), *TRAIN, BELOW))]
    for plainer in ((), (Apply(smooth=True),), (Apply(module="1"),)):
        assert (*TRAIN, *plainer) in programs


def test_between_iterations_and_of_the_root_or_a_unit() -> None:
    for program in (
        (Forward(), Apply(), Backward()),
        (Forward(sync=False), Backward(), Apply(), *TRAIN),
    ):
        with pytest.raises(CaseError, match="in the middle of an iteration"):
            check(case(fsdp1(""), *program))
    for module in ("0", "2"):
        with pytest.raises(CaseError, match="neither the root nor a unit"):
            check(case(fsdp1("", "1"), *TRAIN, Apply(module=module)))
    sound(fsdp1("0", "1"), Apply(), *TRAIN)


def test_a_backward_with_nothing_to_go_back_through_leaves_units_whole() -> None:
    lacking: dict[str, Any] = {"model": Idle(), "inputs": Dense(width=3)}
    sound(fsdp1(""), *TRAIN, Apply(), **lacking)
    with pytest.raises(CaseError, match="units may be whole"):
        check(case(fsdp2(""), *TRAIN, Apply(), **lacking))
    lacking["inputs"] = Dense(width=3, requires_grad=True)
    sound(fsdp2(""), *TRAIN, Apply(), **lacking)


def test_a_root_that_no_backward_reaches_stays_whole() -> None:
    """Beside others that are reached: what it holds is registered whole, and then let go."""
    beside = Sequential(children=(Idle(), Linear(out=3)))
    one_by_one = Optimizer(foreach=False)
    asked: dict[str, Any] = {"model": beside, "inputs": Dense(width=3), "optimizer": one_by_one}
    with pytest.raises(CaseError, match="units may be whole"):
        check(case(fsdp2("0"), *TRAIN, Apply(), **asked))
    sound(fsdp2("1"), *TRAIN, Apply(), **asked)
    sound(fsdp2("", "0"), *TRAIN, Apply(), **asked)
    sound(fsdp1("0"), *TRAIN, Apply(), **asked)


def test_units_that_are_whole_take_it_with_fsdp1_alone() -> None:
    program = (*TRAIN, Forward(grad=False), Apply(), *TRAIN)
    sound(fsdp1(""), *program)
    with pytest.raises(CaseError, match="units may be whole"):
        check(case(fsdp2(""), *program))


@pytest.mark.parametrize("plan", [fsdp1("0", "1"), fsdp2("0", "1")])
def test_not_of_a_parameter_of_two_units(plan: Plan) -> None:
    tie = Tie(source="0.weight", target="1.weight")
    square = Sequential(children=(Linear(out=3), Linear(out=3)))
    with pytest.raises(CaseError, match="of which FSDP makes two"):
        check(case(plan, Apply(), *TRAIN, model=square, inputs=Dense(width=3), ties=(tie,)))


def test_what_is_held_out_instead_of_frozen_would_be_changed() -> None:
    twin = Variant(name="held_out", frozen=(), held_out=("0.weight", "0.bias"))
    changes: dict[str, Any] = {"frozen": twin.held_out, "twins": (twin,)}
    sound(fsdp2("", "0"), *TRAIN, **changes)
    with pytest.raises(CaseError, match="held out or not"):
        check(case(fsdp2("", "0"), *TRAIN, Apply(), **changes))


def gathers(plan: Plan, *program: Op, **changes: Any) -> list[str]:
    """What the last operation gathers, with its bounds."""
    found = traffic(anatomy(sound(plan, *program, **changes)), 0)
    return sorted(f"{text}: {number}" for text, number in found[len(program) - 1].numbers.items())


# Over two ranks 0 has 3 * 4 + 4 elements, and 1 has 4 * 4 + 4.
BOTH = ["all_gather float32 10: 1", "all_gather float32 8: 1"]


def test_fsdp1_gathers_each_sharded_unit_in_the_module() -> None:
    plan, wide = fsdp1("", "1"), {"inputs": Dense(width=3)}
    assert gathers(plan, *TRAIN, Apply(), **wide) == BOTH
    assert gathers(plan, *TRAIN, BELOW, **wide) == BOTH[:1]
    # The root is whole after a forward, and stays so; not so where it is whole in less precision.
    lone = (*TRAIN, Forward(grad=False), Apply())
    assert gathers(plan, *lone, **wide) == ["all_gather float32 10: 1", "all_gather float32 8: 0"]
    low = fsdp1("", "1", precision=Precision(param="bfloat16"))
    assert gathers(low, *lone, **wide) == BOTH


def test_fsdp2_gathers_nothing_for_what_takes_no_whole_parameter() -> None:
    assert gathers(fsdp2("", "1"), *TRAIN, Apply()) == []
    smooth = sound(fsdp2("", "1"), *TRAIN, Apply(smooth=True))
    assert 3 not in traffic(anatomy(smooth), 0)


OWN = Imported(
    target="mine.py",
    modules=tuple(
        ImportedModule(
            path=path,
            cls="Linear",
            alone=True,
            parameters=(ImportedParameter(name="weight", shape=(2, 2)),),
        )
        for path in ("", "module", "module.inner", "other")
    ),
    calls=("module", "module.inner", "other"),
)


def of_own(plan: Plan, module: str) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=OWN,
        inputs=Given(),
        plan=plan,
        program=(*TRAIN, ZeroGrad(), Apply(module=module)),
    )


def test_a_module_that_has_the_name_of_what_fsdp1_wraps() -> None:
    """``model.module`` is the whole model then, and not the user's own ``module``."""
    paths = ("", "module", "module.inner", "other")
    for path in paths[1:3]:
        with pytest.raises(CaseError, match="a wrapper with its own `module`"):
            check(of_own(fsdp1(*paths), path))
        check(of_own(fsdp2(*paths), path))
    for path in ("", "other"):
        check(of_own(fsdp1(*paths), path))


def test_none_is_drawn_of_such_a_module() -> None:
    seen = Counter[tuple[str, bool]]()

    def look(given: CaseSpec) -> None:
        check(given)
        for op in given.program:
            if isinstance(op, Apply) and op.module:
                seen[given.api, "module" in op.module.split(".")] += 1

    drive(cases(model=OWN), look, seed=1, max_examples=2000)
    assert seen["fsdp1", False]
    assert seen["fsdp2", True]
    assert not seen["fsdp1", True]
