"""Units that a forward calls without reading what they train, before one that reads it."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Forward, Op
from tests.unit.case.test_layer_drop import ONCE, case, having
from tests.unit.case.test_units import fsdp1

# The third forward leaves out the second layer, which is the root's.
THREE: tuple[Op, ...] = ONCE * 3


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (THREE, []),
        ((*THREE, *ONCE), [""]),
        ((*THREE, Forward(grad=False)), []),
        ((*ONCE, *ONCE), []),
    ],
)
def test_what_was_left_out_is_read_later(program: tuple[Op, ...], expected: list[str]) -> None:
    plan = fsdp1("", "layers.0", use_orig_params=True)
    assert having(case(plan, program), "quiet_at_first") == expected
