"""Of which parameters a checkpoint on disk may hold the optimizer's state."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, Forward, Rebuild
from fsdpfuzz.case.operations import Op, OptimState, RequiresGrad, Transfer
from tests.unit.case.test_hazards import FLAT, LAYERS, TRAIN, having
from tests.unit.case.test_units import fsdp1, fsdp2, make

PLAN = fsdp1("")
REBUILD = Rebuild(plan=PLAN)
THAW = RequiresGrad(parameters=("0.weight",), value=True)


def stored(*program: Op, **changes: object) -> list[str]:
    case: CaseSpec = make(PLAN, model=LAYERS, program=program)
    return having(msgspec.structs.replace(case, **changes), "stored_state")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (TRAIN, []),
        ((*TRAIN, REBUILD), FLAT),
        ((*TRAIN, Transfer(state=True)), FLAT),
        # The model alone; the optimizer's state, but not on disk; no optimizer that did anything.
        ((*TRAIN, Transfer()), []),
        ((*TRAIN, OptimState()), []),
        ((Forward(grad=False), REBUILD), []),
    ],
)
def test_a_state_is_stored(program: tuple[Op, ...], expected: list[str]) -> None:
    assert stored(*program) == expected


def test_of_what_is_trained() -> None:
    frozen = ("0.weight", "0.bias")
    left = [fqn for fqn in FLAT if fqn not in frozen]
    assert stored(*TRAIN, REBUILD, frozen=frozen) == left
    assert stored(THAW, *TRAIN, REBUILD, frozen=frozen) == ["0.weight", *left]
    assert stored(*TRAIN, REBUILD, held_out=("0.weight",)) == FLAT[1:]


def test_whatever_the_api() -> None:
    program = (*TRAIN, Rebuild(plan=fsdp2("")))
    assert having(make(fsdp2(""), model=LAYERS, program=program), "stored_state") == FLAT
