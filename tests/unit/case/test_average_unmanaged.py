"""What no unit manages: who averages its gradients, and what goes with ranks that differ."""

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
    Optimizer,
    Plan,
    Rebuild,
    RequiresGrad,
    Sequential,
    StateDict,
    Step,
    Tie,
    anatomy,
    check,
    features,
    lower,
)
from fsdpfuzz.case.operations import AverageUnmanaged, ZeroGrad
from fsdpfuzz.case.operations.clip import Clip
from fsdpfuzz.case.operations.optim_state import OptimState
from fsdpfuzz.case.recipe import Call, Do, Operation, literal
from fsdpfuzz.errors import CaseError

FIRST = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored_parameters=("0.bias",)),))
SECOND = Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=("1",)),))
TRAIN = (Forward(), Backward(), Step())
AVERAGED = (Forward(), Backward(), AverageUnmanaged(), Step())


def case(plan: Plan, *program: Op, **fields: object) -> CaseSpec:
    model = Sequential(children=(Linear(out=3), Linear(out=3)))
    return CaseSpec(
        world_size=2,
        model=model,
        inputs=Dense(width=3),
        plan=plan,
        program=program,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("plan", [FIRST, SECOND])
def test_the_feature_says_who_averages(plan: Plan) -> None:
    left = tuple(fqn for fqn, owner in anatomy(case(plan, *TRAIN)).owners.items() if owner is None)
    assert left == (("0.bias",) if plan is FIRST else ("1.weight", "1.bias"))

    def said(*program: Op, **fields: object) -> str:
        return features(case(plan, *program, **fields))["unmanaged"]

    assert said(*TRAIN) == said(*AVERAGED, *TRAIN) == "apart"
    assert said(*AVERAGED, *AVERAGED) == "averaged"
    assert said(StateDict()) == said(*TRAIN, frozen=left) == "idle"
    thawed = (RequiresGrad(parameters=left, value=True), *TRAIN)
    assert said(*thawed, frozen=left) == "apart"
    whole = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
    assert features(case(whole, *TRAIN))["unmanaged"] == "none"


def test_it_is_all_reduced_in_both_trainings() -> None:
    (operation,) = (
        s
        for s in lower(anatomy(case(FIRST, *AVERAGED))).main
        if isinstance(s, Operation) and s.name == "average_unmanaged"
    )
    (do,) = operation.body
    assert isinstance(do, Do)
    assert do.who == "both"
    assert isinstance(do.call, Call)
    (chosen,) = do.call.args
    assert isinstance(chosen, Call)
    assert chosen.args[1] == literal(("0.bias",))


@pytest.mark.parametrize(
    "op",
    [
        StateDict(rank0_only=True),
        OptimState(broadcast=True),
        OptimState(offload=True),
        Rebuild(plan=FIRST),
        Clip(max_norm=1.0),
    ],
)
def test_what_makes_ranks_one_waits_for_equal_ones(op: Op) -> None:
    before = (Forward(), Backward(), AverageUnmanaged())
    last = (*before, op) if isinstance(op, Clip) else (*before, Step(), op)
    check(case(FIRST, *last))
    with pytest.raises(CaseError, match="rank"):
        check(case(FIRST, *TRAIN, *last))


def test_each_rank_may_save_its_own() -> None:
    check(case(FIRST, *TRAIN, StateDict(), OptimState(), StateDict(form="sharded")))


def test_it_needs_something_unmanaged_and_reduced() -> None:
    whole = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
    for plan, program in (
        (whole, AVERAGED),
        (FIRST, (Forward(), AverageUnmanaged(), Backward())),
        (FIRST, (AverageUnmanaged(), *TRAIN)),
        (FIRST, (*TRAIN, ZeroGrad(), AverageUnmanaged())),
        (FIRST, (Forward(sync=False), Backward(), AverageUnmanaged(), Forward(), Backward())),
    ):
        with pytest.raises(CaseError, match="average_unmanaged"):
            check(case(plan, *program))


@pytest.mark.parametrize("foreach", [None, True])
def test_no_list_of_tensors_and_dtensors(foreach: bool | None) -> None:
    told = {"optimizer": Optimizer(foreach=foreach)}
    check(case(FIRST, *TRAIN, **told))
    check(case(SECOND, Forward(), Backward(), **told))
    whole = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    for plan, program in ((SECOND, TRAIN), (whole, (*TRAIN, Rebuild(plan=SECOND)))):
        check(case(plan, *program, optimizer=Optimizer(foreach=False)))
        with pytest.raises(CaseError, match="DTensors"):
            check(case(plan, *program, **told))


def test_a_parameter_is_ignored_by_its_one_name() -> None:
    tie = (Tie(source="0.bias", target="1.bias"),)
    with pytest.raises(CaseError, match="another name"):
        check(case(FIRST, *TRAIN, ties=tie))
    both = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored=("1",), ignored_parameters=("0.bias",)),))
    with pytest.raises(CaseError, match="not both"):
        check(case(both, *TRAIN))
    with pytest.raises(CaseError, match=r"0\.scale"):
        check(case(Fsdp2Plan(units=(Fsdp2Unit(path="", ignored_parameters=("0.scale",)),)), *TRAIN))
