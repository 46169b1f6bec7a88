"""Of which parameters the optimizer's state is in a checkpoint on disk."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, Forward, Rebuild
from fsdpfuzz.case.operations import Op, OptimState, Transfer
from tests.unit.case.test_hazards import FLAT, LAYERS, TRAIN, having
from tests.unit.case.test_units import fsdp1, fsdp2, make

PLAN = fsdp1("")
REBUILD = Rebuild(plan=PLAN)


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


def test_of_what_the_optimizer_has() -> None:
    assert stored(*TRAIN, REBUILD, frozen=("0.weight", "0.bias")) == FLAT
    assert stored(*TRAIN, REBUILD, held_out=("0.weight",)) == FLAT[1:]


def test_whatever_the_api() -> None:
    program = (*TRAIN, Rebuild(plan=fsdp2("")))
    assert having(make(fsdp2(""), model=LAYERS, program=program), "stored_state") == FLAT
