"""Which units a backward comes by."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    anatomy,
)
from fsdpfuzz.case.modules import SideOutput
from fsdpfuzz.expect.calls import calls_of
from fsdpfuzz.expect.collectives import traffic

FROZEN = ("body.weight", "body.bias")
PLAN = Fsdp2Plan(units=tuple(Fsdp2Unit(path=p, reshard_after_forward=True) for p in ("", "layer")))


@pytest.mark.parametrize(
    ("frozen", "with_grad", "expected"),
    [
        ((), False, {"": 1, "layer": 1}),
        # What the layer puts out goes to the loss past the unit around it.
        (FROZEN, False, {"": 0, "layer": 1}),
        (FROZEN, True, {"": 1, "layer": 1}),
        ((*FROZEN, "layer.weight"), False, {"": 0, "layer": 0}),
    ],
)
def test_what_is_kept_for_the_loss_is_no_output_of_what_is_around_it(
    frozen: tuple[str, ...], with_grad: bool, expected: dict[str, int]
) -> None:
    case = CaseSpec(
        world_size=2,
        model=SideOutput(body=Linear(out=2), on="input"),
        inputs=Dense(width=2, requires_grad=with_grad),
        plan=PLAN,
        frozen=frozen,
        program=(Forward(), Backward()),
    )
    a = anatomy(case)
    found = [calls_of(a, op, now) for _, op, now in a.situations(0) if isinstance(op, Forward)]
    assert [{p: u.reached for p, u in each.units.items()} for each in found if each] == [expected]
    backward = dict(traffic(a, 0, settled=True, own=False))[1].numbers
    # Of the root, with three elements on each rank; a prefetch may ask for it nevertheless.
    assert backward["all_gather float32 3"].least == expected[""]
