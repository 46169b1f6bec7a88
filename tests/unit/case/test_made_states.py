"""Of which parameters torch.distributed.checkpoint makes the optimizer's state."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import Backward, Forward, Linear, Plan, Rebuild, RequiresGrad, Step
from fsdpfuzz.case.operations import Op, OptimState, ZeroGrad
from tests.unit.case.test_hazards import FLAT, FREEZE, LAYERS, TRAIN, WITHOUT, having, orig
from tests.unit.case.test_units import fsdp1, fsdp2, make

TAKE = OptimState(strict=False)
FRESH = OptimState(strict=False, fresh=True)
PARTS = OptimState(strict=False, fresh=True, form="sharded")
THAW = RequiresGrad(parameters=("0.weight",), value=True)
FIRST: tuple[Op, ...] = (FREEZE, *TRAIN, ZeroGrad())


@pytest.mark.parametrize(
    ("plan", "program", "expected"),
    [
        (fsdp2(""), (TAKE, *TRAIN), FLAT),
        (fsdp1(""), (TAKE, *TRAIN), FLAT),
        (fsdp2(""), (Rebuild(plan=fsdp2("")), *TRAIN), FLAT),
        (fsdp2(""), (*TRAIN, TAKE), []),
        (fsdp1(""), (OptimState(own=True), *TRAIN), []),
        # None is made of what is frozen, and none beside gradients.
        (fsdp2(""), (FREEZE, TAKE, *TRAIN), FLAT[1:]),
        (fsdp2(""), (Forward(), Backward(), TAKE, Step()), []),
        (fsdp2(""), (Forward(), Backward(), ZeroGrad(), TAKE, Step()), FLAT),
        # A new optimizer has all states; what was not saved of them, fsdp2 leaves.
        (fsdp2(""), (*FIRST, THAW, FRESH), ["0.weight"]),
        (fsdp2(""), (*FIRST, THAW, TAKE), []),
        (fsdp2(""), (*FIRST, FRESH, THAW), []),
        (fsdp2(""), (*FIRST, THAW, PARTS), []),
        (orig(""), (*FIRST, THAW, FRESH), []),
        (fsdp2(""), (*TRAIN, ZeroGrad(), FRESH), []),
    ],
)
def test_a_state_is_made(plan: Plan, program: tuple[Op, ...], expected: list[str]) -> None:
    case = make(plan, model=LAYERS, program=program)
    assert having(case, "made_state") == expected
    held_out = msgspec.structs.replace(case, held_out=("0.weight",))
    assert having(held_out, "made_state") == [fqn for fqn in expected if fqn != "0.weight"]


def test_a_rank_without_states_makes_those_of_its_neighbours() -> None:
    unit = orig("1")
    program = (*WITHOUT, TAKE)
    assert having(make(unit, model=LAYERS, program=program), "made_state") == []
    # The second of two ranks has nothing of the only weight that was stepped.
    few = msgspec.structs.replace(LAYERS, children=(Linear(out=1), Linear(out=1, bias=False)))
    case = make(unit, model=few, program=program)
    assert having(case, "made_state") == ["0.weight", "0.bias"]
