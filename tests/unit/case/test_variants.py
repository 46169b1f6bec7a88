"""Variants come to the same gradients as their case: what cannot is refused with the reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Embedding,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    RequiresGrad,
    Sequential,
    Tokens,
    Variant,
    anatomy,
    check,
)
from fsdpfuzz.case.operations.forward import cut_gradients
from fsdpfuzz.errors import CaseError

PLAIN: tuple[Checkpoint, ...] = ()
REENTRANT = (Checkpoint(path="1", reentrant=True),)
BEHIND = (Checkpoint(path="2"),)
FREEZE = RequiresGrad(parameters=("0.weight",), value=False)
TOGETHER = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
APART = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
CUT = "reentrant checkpoints leave out gradients"


def case_with(
    checkpoints: tuple[Checkpoint, ...],
    *others: tuple[Checkpoint, ...],
    plan: Fsdp1Plan | Fsdp2Plan = TOGETHER,
    frozen: tuple[str, ...] = (),
    freezes: bool = False,
) -> CaseSpec:
    """Two layers behind an embedding, which nothing but its own parameter gives a gradient to."""
    named = zip(("first", "second"), others, strict=False)
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Embedding(rows=2, out=1), Linear(out=1), Linear(out=1))),
        inputs=Tokens(batch=1, length=2),
        plan=plan,
        frozen=frozen,
        checkpoints=checkpoints,
        program=(FREEZE, Forward(), Backward()) if freezes else (Forward(), Backward()),
        twins=tuple(Variant(name=name, checkpoints=form) for name, form in named),
    )


@pytest.mark.parametrize(
    ("checkpoints", "others"),
    [(REENTRANT, (PLAIN,)), (REENTRANT, (PLAIN, BEHIND)), (PLAIN, (REENTRANT,))],
)
@pytest.mark.parametrize("freezes", [False, True])
def test_other_checkpoints_beside_a_reentrant_one_that_gives_no_gradient(
    checkpoints: tuple[Checkpoint, ...],
    others: tuple[tuple[Checkpoint, ...], ...],
    *,
    freezes: bool,
) -> None:
    frozen = () if freezes else ("0.weight",)
    case = case_with(checkpoints, *others, plan=APART, frozen=frozen, freezes=freezes)
    with pytest.raises(CaseError, match=CUT) as refused:
        check(case)
    assert refused.value.path == "$.twins[0].checkpoints"
    check(case_with(checkpoints, *others, plan=APART))
    check(case_with(REENTRANT, REENTRANT, plan=APART, frozen=frozen, freezes=freezes))


def test_what_is_frozen_later_gives_gradients_before() -> None:
    case = case_with(REENTRANT, freezes=True, plan=APART)
    assert cut_gradients(anatomy(case), plain=True) == {(0, 1, "1")}
    thawed = RequiresGrad(parameters=("0.weight",), value=True)
    again = (*case.program, thawed, Forward(), Backward())
    assert cut_gradients(anatomy(replace(case, program=again)), plain=True) == {(0, 1, "1")}
    first = (Forward(), Backward(), *case.program)
    assert cut_gradients(anatomy(replace(case, program=first)), plain=True) == {(0, 3, "1")}


def test_a_flat_parameter_gives_gradients_that_plain_training_has_not() -> None:
    """Its views require grad if any of its parameters does, so a reentrant checkpoint has some."""
    with pytest.raises(CaseError, match=r"at program\[0\] the reentrant one at '1'") as refused:
        check(case_with(REENTRANT, frozen=("0.weight",)))
    assert refused.value.path == "$.checkpoints"
    check(case_with(REENTRANT))
    check(case_with(REENTRANT, plan=APART, frozen=("0.weight",)))
    check(case_with(BEHIND, frozen=("0.weight",)))
