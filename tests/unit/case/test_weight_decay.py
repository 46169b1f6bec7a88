"""Weights decay only where every step finds a gradient of all that is trained."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Optimizer,
    Sequential,
    Step,
    Switch,
    anatomy,
    check,
)
from fsdpfuzz.case.operations import ClearGrad
from fsdpfuzz.case.stepped import lacks_gradients
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from tests.injected.by_hand import ONCE

TWO = Sequential(children=(Linear(out=4), Linear(out=4)))
EITHER = Sequential(children=(Linear(out=4), Switch(children=(Linear(out=4), Linear(out=4)))))
DECAYS = Optimizer(weight_decay=0.1)


def case(*program: Op, **fields: object) -> CaseSpec:
    given = {"model": TWO, "optimizer": DECAYS, **fields}
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
    return CaseSpec(
        world_size=2,
        inputs=Dense(width=4),
        plan=plan,
        program=program,
        **given,  # type: ignore[arg-type]
    )


def test_all_have_gradients_at_each_step() -> None:
    check(case(*ONCE, *ONCE))
    check(case(*ONCE, frozen=("0.weight", "0.bias")))


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        (case(Step()), ["0.bias", "0.weight", "1.bias", "1.weight"]),
        (
            case(Forward(), Backward(), ClearGrad(parameters=("1.bias",)), Step()),
            ["1.bias"],
        ),
        (
            case(*ONCE, model=EITHER),
            [f"1.branches.{i}.{name}" for i in (0, 1) for name in ("bias", "weight")],
        ),
        (
            case(*ONCE, checkpoints=(Checkpoint(path="", kind="wrapper", reentrant=True),)),
            ["0.bias", "0.weight", "1.bias", "1.weight"],
        ),
    ],
)
def test_what_may_have_none_is_named(given: CaseSpec, lacking: list[str]) -> None:
    plain = msgspec.structs.replace(given, optimizer=Optimizer())
    assert list(lacks_gradients(anatomy(plain))) == lacking
    with pytest.raises(CaseError, match=lacking[0]) as caught:
        check(given)
    assert caught.value.path == "$.optimizer.weight_decay"


def test_torch_is_told() -> None:
    options = {
        name: dict(Optimizer(name=name, weight_decay=0.1).made("parameters").options)
        for name in ("sgd", "adam", "adamw")
    }
    assert {o["weight_decay"] for o in options.values()} == {0.1}
    assert "weight decay 0.1" in DECAYS.words()
    # AdamW's own default is 0.01.
    assert dict(Optimizer(name="adamw").made("parameters").options)["weight_decay"] == 0.0
    assert "weight_decay" not in dict(Optimizer().made("parameters").options)


def test_a_case_is_simpler_without() -> None:
    given = case(*ONCE)
    without = [one for one in simpler(given) if one.words == "weight_decay"]
    assert [one.case.optimizer for one in without] == [Optimizer()]
