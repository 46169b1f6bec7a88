"""Between a forward and a backward that never came of it, full parameters go to the CPU."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Backward, Forward, Rebuild, anatomy, check, unit_features
from fsdpfuzz.case.hazards.moved_hooks import units_with_moved_hooks
from fsdpfuzz.case.operations import FullParams, Op
from tests.unit.case.test_units import fsdp1, fsdp2, make

ONCE = (Forward(), Backward())
DROPPED = Forward(drop=True)
MOVED = FullParams(offload_to_cpu=True)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((DROPPED, MOVED, *ONCE), {"", "1"}),
        ((DROPPED, FullParams(), MOVED, FullParams(), *ONCE), {"", "1"}),
        ((DROPPED, FullParams(), *ONCE), set()),
        ((Forward(grad=False), MOVED, *ONCE), set()),
        ((*ONCE, MOVED, *ONCE), set()),
        ((DROPPED, *ONCE, MOVED, *ONCE), set()),
        ((MOVED, DROPPED, *ONCE), set()),
        ((DROPPED, MOVED), set()),
        ((DROPPED, MOVED, Rebuild(plan=fsdp1("", "1")), *ONCE), set()),
        ((Forward(drop=True, target="1"), MOVED, *ONCE), {"1"}),
    ],
)
def test_a_hook_goes_before_its_backward(program: tuple[Op, ...], expected: set[str]) -> None:
    case = make(fsdp1("", "1"), program=program)
    check(case)
    a = anatomy(case)
    assert units_with_moved_hooks(a) == expected
    assert {u for u in a.units if unit_features(a, u)["hook_moved"] == "on"} == expected


def test_of_fsdp2_nothing_is_said() -> None:
    assert "hook_moved" not in unit_features(anatomy(make(fsdp2("", "1"))), "1")
