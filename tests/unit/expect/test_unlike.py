"""How far the plain model's own trainings may be apart before one of them is wrong."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, Optimizer
from fsdpfuzz.expect import unlike
from tests.unit.loop.standins import make_case

CASE = make_case((3, 4))
LOW = msgspec.structs.replace(CASE, stored_low=("0",))
ADAM = msgspec.structs.replace(CASE, optimizer=Optimizer(name="adam", lr=0.1, eps=1e-8))


@pytest.mark.parametrize(
    ("case", "off", "largest", "size", "expected"),
    [
        (CASE, 0.0, 0.0, 0.0, False),
        (CASE, 1e-4, 1.0, 1.0, False),
        # Half of it, or twice.
        (CASE, 0.5, 1.0, 1.0, True),
        (CASE, 1.0, 1.0, 1.0, True),
        (CASE, 0.05, 0.1, 1.0, True),
        # All terms cancel: what is left of them is rounding, the larger the larger they are.
        (CASE, 1e-6, 1e-9, 1.0, False),
        (CASE, 1e-2, 1e-2, 1000.0, False),
        (CASE, 1e-2, 1e-2, 1.0, True),
        (LOW, 0.05, 1.0, 1.0, False),
        (LOW, 1.0, 1.0, 1.0, True),
    ],
)
def test_rounding_explains_so_much(
    case: CaseSpec, off: float, largest: float, size: float, expected: bool
) -> None:
    assert unlike(case, 1, off, largest, size) is expected


def test_an_adaptive_step_carries_rounding_anywhere() -> None:
    """Before it nothing does."""
    assert unlike(ADAM, 1, 0.5, 1.0, 1.0)
    assert not unlike(ADAM, 2, 0.5, 1.0, 1.0)
