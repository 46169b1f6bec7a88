"""Units of fsdp1 that show their local shard while the whole is still allocated."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Backward, Forward, anatomy, unit_features
from fsdpfuzz.case.operations import Op
from tests.unit.case.test_hazards import LAYERS, orig
from tests.unit.case.test_units import make


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((Forward(), Forward(grad=False), Backward()), "on"),
        ((Forward(grad=False), Forward(), Backward()), "off"),
        ((Forward(), Forward(grad=False, target="1"), Backward()), "off"),
    ],
)
def test_the_last_call_before_backward_decides_what_a_unit_shows(
    program: tuple[Op, ...], expected: str
) -> None:
    a = anatomy(make(orig("", "0", sharding="SHARD_GRAD_OP"), model=LAYERS, program=program))
    assert unit_features(a, "0")["sharded_views"] == expected
