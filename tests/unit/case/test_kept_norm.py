"""Where fsdp1 keeps the norm of a rank without gradients."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Rebuild,
    Step,
    anatomy,
    case_features,
    check,
)
from fsdpfuzz.case.operations import Clip

MOST, SUM = Clip(max_norm=1.0, norm_type="inf"), Clip(max_norm=1.0, norm_type=1)
F, B = Forward(), Backward()
PARTS = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
FLAT = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
WHOLE = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True, sharding="NO_SHARD"),))


def told(*program: Op, plan: Fsdp1Plan = PARTS, frozen: tuple[str, ...] = ("weight",)) -> str:
    given = CaseSpec(
        world_size=2,
        model=Linear(out=1),
        inputs=Dense(width=1),
        plan=plan,
        frozen=frozen,
        program=program,
    )
    check(given)
    return case_features(anatomy(given))["kept_norm"]


# As they were run on gloo, torch 2.13.0: where it is off, no norm is wrong, and where it is on the
# later one is, unless it is the larger maximum itself. Of weight and bias each rank has one.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((F, B, MOST), "off"),
        ((F, B, MOST, MOST), "on"),
        ((F, B, MOST, SUM), "on"),
        ((F, B, SUM, SUM), "off"),
        ((F, B, SUM, MOST), "off"),
        ((F, B, MOST, Step(), F, B, MOST), "on"),
        ((F, B, MOST, Step(), Rebuild(plan=PARTS), F, B, MOST), "off"),
    ],
)
def test_a_maximum_is_kept_for_the_next_norm(program: tuple[Op, ...], expected: str) -> None:
    assert told(*program) == expected


def test_a_rank_has_gradients_of_a_flat_or_whole_parameter_or_where_none_is_frozen() -> None:
    assert told(F, B, MOST, SUM, plan=FLAT) == "off"
    assert told(F, B, MOST, SUM, plan=WHOLE) == "off"
    assert told(F, B, MOST, SUM, frozen=()) == "off"
