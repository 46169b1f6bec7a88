"""Where the dtype of what a forward puts out is promised."""

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
    Plan,
    Precision,
    Sequential,
    anatomy,
)
from fsdpfuzz.expect import output_dtype

LOW, HIGH = Precision(param="bfloat16"), Precision(param="bfloat16", output="float32")


@pytest.mark.parametrize(
    ("plan", "called", "expected"),
    [
        (Fsdp2Plan(units=(Fsdp2Unit(path="", precision=HIGH),)), "", "float32"),
        # It computes in that dtype, too, but is not told what to put out.
        (Fsdp2Plan(units=(Fsdp2Unit(path="", precision=LOW),)), "", None),
        (Fsdp1Plan(units=(Fsdp1Unit(path="", precision=LOW),)), "", None),
        (Fsdp2Plan(units=(Fsdp2Unit(path=""),)), "", None),
        # Of another unit than the one that is called.
        (Fsdp2Plan(units=(Fsdp2Unit(path="0", precision=HIGH), Fsdp2Unit(path=""))), "", None),
        (
            Fsdp2Plan(units=(Fsdp2Unit(path="0", precision=HIGH), Fsdp2Unit(path=""))),
            "0",
            "float32",
        ),
        (Fsdp2Plan(units=(Fsdp2Unit(path="0", grouped=("1",), precision=HIGH),)), "0", None),
        (Fsdp2Plan(units=(Fsdp2Unit(path="0", precision=HIGH),)), "1", None),
    ],
)
def test_only_the_unit_that_is_called_says_so(plan: Plan, called: str, expected: str) -> None:
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), Linear(out=3))),
        inputs=Dense(width=3),
        plan=plan,
        program=(Forward(target=called), Backward()),
    )
    assert output_dtype(anatomy(case), 0) == expected
