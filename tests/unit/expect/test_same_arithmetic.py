"""When a variant must give the very bits that its case gives."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Residual,
    Sequential,
    Step,
    Variant,
    ZeroGrad,
    anatomy,
)
from fsdpfuzz.expect import same_arithmetic

ITERATION = (Forward(), Backward(), Step(), ZeroGrad())
ACCUMULATED = (Forward(sync=False), Backward(), Forward(), Backward())
PLAN = Fsdp2Plan(units=(Fsdp2Unit(path=""),))


def case_of(*program: Op, residual: bool = False) -> CaseSpec:
    body = Linear(out=3)
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Residual(body=body) if residual else body, Linear(out=2))),
        inputs=Dense(width=3, requires_grad=True),
        plan=PLAN,
        program=program,
    )


def recomputing(*, reentrant: bool = False) -> Variant:
    return Variant(name="other", checkpoints=(Checkpoint(path="0", reentrant=reentrant),))


@pytest.mark.parametrize(
    ("case", "variant", "same"),
    [
        (case_of(*ITERATION), Variant(name="held_out", held_out=("0.weight",)), True),
        (case_of(*ITERATION), Variant(name="other", plan=PLAN), True),
        (
            case_of(*ITERATION),
            Variant(name="other", plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0")))),
            False,
        ),
        (case_of(*ITERATION * 2), recomputing(), True),
        (case_of(*ITERATION * 2), recomputing(reentrant=True), True),
        (case_of(*ACCUMULATED), recomputing(), True),
        (case_of(*ACCUMULATED), recomputing(reentrant=True), False),
        (case_of(*ITERATION, residual=True), recomputing(), False),
        (
            case_of(*ITERATION),
            Variant(name="other", checkpoints=(Checkpoint(path="0", kind="offload"),)),
            False,
        ),
        (case_of(Forward(), Forward(), Backward()), recomputing(), False),
    ],
)
def test_same_arithmetic(case: CaseSpec, variant: Variant, same: bool) -> None:
    assert same_arithmetic(anatomy(case), variant) is same


@pytest.mark.parametrize(("ranks", "same"), [(2, True), (3, False), (4, False)])
def test_more_than_two_ranks_add_up_by_place(ranks: int, same: bool) -> None:
    case = replace(case_of(*ITERATION), world_size=ranks, frozen=("0.weight",))
    assert same_arithmetic(anatomy(case), Variant(name="other", plan=PLAN))
    trained = Variant(name="held_out", frozen=(), held_out=case.frozen)
    assert same_arithmetic(anatomy(case), trained) is same
