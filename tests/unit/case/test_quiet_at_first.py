"""Units that a forward calls without reading what they train, before one that reads it."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Backward, Forward, Op, ZeroGrad
from fsdpfuzz.case.units.sharding import Sharding
from tests.unit.case.test_layer_drop import ONCE, case, having
from tests.unit.case.test_units import fsdp1

DROPPED = Forward(drop=True)
# The third forward leaves out the second layer, which is the root's.
THREE: tuple[Op, ...] = ONCE * 3


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (THREE, []),
        ((*THREE, *ONCE), [""]),
        ((*THREE, Forward(grad=False)), []),
        ((*ONCE, *ONCE), []),
        # The second forward leaves out the first layer.
        ((DROPPED, *ONCE, *ONCE), ["layers.0"]),
        ((DROPPED, *ONCE), []),
        ((Forward(grad=False), *ONCE, *ONCE), []),
        # A backward comes to it after all.
        ((Forward(), Forward(), Backward(), *ONCE), []),
    ],
)
def test_what_was_left_out_is_read_later(program: tuple[Op, ...], expected: list[str]) -> None:
    plan = fsdp1("", "layers.0", use_orig_params=True)
    assert having(case(plan, program), "quiet_at_first") == expected


@pytest.mark.parametrize(
    ("sharding", "program", "expected"),
    [
        ("NO_SHARD", (*ONCE, DROPPED, *ONCE), True),
        ("NO_SHARD", (*ONCE, ZeroGrad(), DROPPED, *ONCE), False),
        ("NO_SHARD", (*ONCE, *ONCE, DROPPED), False),
        ("FULL_SHARD", (*ONCE, DROPPED, *ONCE), False),
    ],
)
def test_a_whole_unit_has_gradients_as_a_backward_passes_over_it(
    sharding: Sharding, program: tuple[Op, ...], expected: bool
) -> None:
    plan = fsdp1("", "layers.1", use_orig_params=True, sharding=sharding)
    assert ("layers.1" in having(case(plan, program), "quiet_graded")) == expected
