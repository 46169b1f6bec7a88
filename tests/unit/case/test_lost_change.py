"""What a checkpoint hands out wrongly where a change of ``requires_grad`` is lost on a unit."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    Checkpoint,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Plan,
    RequiresGrad,
    Sequential,
    anatomy,
    check,
    parameter_features,
)
from tests.unit.case.test_units import fsdp2, make

LAYER = Linear(out=4, bias=False)
MODEL = Sequential(children=(Sequential(children=(LAYER, LAYER)), LAYER))
ALL = ["0.0.weight", "0.1.weight", "1.weight"]
ONCE: tuple[Op, ...] = (Forward(), Backward())
THAW = RequiresGrad(parameters=("0.0.weight",), value=True)
SHOWN = Fsdp1Plan(units=(Fsdp1Unit(path="0", use_orig_params=True),))
OTHER = RequiresGrad(parameters=("1.weight",), value=False)
AROUND = Checkpoint(path="")


@pytest.mark.parametrize(
    ("plan", "checkpoint", "program", "expected"),
    [
        (fsdp2("0"), AROUND, (*ONCE, THAW, *ONCE), ALL),
        (fsdp2("0", "0.0"), AROUND, (*ONCE, THAW, *ONCE), ALL),
        # Nothing in it requires grad, so that no backward asks for it.
        (fsdp2("0"), Checkpoint(path="0", side="around"), (*ONCE, THAW, *ONCE), []),
        # What is recomputed lies within the unit, which is gathered by then.
        (fsdp2("0"), Checkpoint(path="0"), (*ONCE, THAW, *ONCE), []),
        (fsdp2("0"), Checkpoint(path="", kind="offload"), (*ONCE, THAW, *ONCE), []),
        # A backward comes to the root, and shards all that belongs to it.
        (fsdp2("", "0"), AROUND, (*ONCE, THAW, *ONCE), []),
        (SHOWN, AROUND, (*ONCE, THAW, *ONCE), None),
        # Nothing was recomputed yet, another one changes, or a forward shards the unit before.
        (fsdp2("0"), AROUND, (Forward(grad=False), THAW, *ONCE), []),
        (fsdp2("0"), AROUND, (*ONCE, OTHER, *ONCE), []),
        (fsdp2("0"), AROUND, (*ONCE, THAW, Forward(grad=False), *ONCE), []),
    ],
)
def test_parameters_under_a_checkpoint_around_a_unit_that_missed_a_change(
    plan: Plan, checkpoint: Checkpoint, program: tuple[Op, ...], expected: list[str] | None
) -> None:
    frozen = ("0.0.weight", "0.1.weight")
    given = make(plan, model=MODEL, frozen=frozen, checkpoints=(checkpoint,), program=program)
    check(given)
    a = anatomy(given)
    told = [parameter_features(a, p.fqn).get("lost_change") for p in a.parameters]
    if expected is None:
        assert set(told) == {None}
    else:
        assert [p.fqn for p, on in zip(a.parameters, told, strict=True) if on == "on"] == expected
