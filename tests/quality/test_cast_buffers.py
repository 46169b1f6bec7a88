"""Buffers that FSDP1 casts before any forward: for whatever is the first to use its root."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Buffered,
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Optimizer,
    Precision,
    Rebuild,
    RequiresGrad,
    Sequential,
    StateDict,
    Step,
    anatomy,
    cast_buffer,
)
from fsdpfuzz.case.operations import Apply, Clip, FullParams, OptimState, Transfer
from tests.injected.by_hand import judged

LOW = Fsdp1Plan(units=(Fsdp1Unit(path="", precision=Precision(buffer="bfloat16")),))


def used(*program: Op) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=6, bias=False), Buffered())),
        inputs=Dense(width=6, batch=1),
        plan=LOW,
        optimizer=Optimizer(),
        program=program,
    )


@pytest.mark.parametrize(
    "program",
    [
        (StateDict(),),
        (FullParams(),),
        (Apply(),),
        (Clip(max_norm=1.0),),
        (Step(), OptimState()),
        (Step(), OptimState(own=True)),
        (Rebuild(plan=LOW),),
        (Transfer(),),
    ],
)
def test_what_uses_the_root_first_casts_its_buffers(program: tuple[Op, ...]) -> None:
    """1.3 is no number of bfloat16."""
    case = used(*program)
    assert cast_buffer(anatomy(case), "1.scale") == "bfloat16"
    assert judged(case).findings == ()


def test_what_leaves_the_root_alone_does_not() -> None:
    case = used(RequiresGrad(parameters=("0.weight",), value=False), Step())
    assert cast_buffer(anatomy(case), "1.scale") is None
    assert judged(case).findings == ()
