"""Where gradients are clipped while a unit that has some is as a lone forward left it."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Op,
    Step,
    anatomy,
    case_features,
    check,
)
from fsdpfuzz.case.operations import Clip
from tests.unit.case.test_units import fsdp1, fsdp2, make

F, QUIET, DROPPED, B = Forward(), Forward(grad=False), Forward(drop=True), Backward()
CLIP = Clip(max_norm=0.1)
ROOT = fsdp2("")


def told(*program: Op, plan: Fsdp2Plan = ROOT) -> str:
    given = make(plan, program=program)
    check(given)
    return case_features(anatomy(given))["clipped_whole"]


# As they were run on gloo, torch 2.13.0: where it is on, the total norm is wrong.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((F, B, CLIP), "off"),
        ((F, B, QUIET, CLIP), "on"),
        ((F, B, DROPPED, CLIP), "on"),
        ((F, B, CLIP, QUIET), "off"),
        ((F, B, CLIP, Step(), QUIET, F, B, CLIP), "off"),
        ((F, B, CLIP, QUIET, Step()), "off"),
        ((F, B, Forward(grad=False, target="1"), CLIP), "on"),
    ],
)
def test_a_forward_comes_between_a_backward_and_clipping(
    program: tuple[Op, ...], expected: str
) -> None:
    assert told(*program) == expected


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (fsdp2("", "0", "1", "2"), "off"),
        (fsdp2("", "0"), "on"),
        (
            Fsdp2Plan(
                units=(
                    Fsdp2Unit(path=""),
                    Fsdp2Unit(path="0", reshard_after_forward=False),
                    Fsdp2Unit(path="1"),
                    Fsdp2Unit(path="2"),
                )
            ),
            "on",
        ),
    ],
)
def test_a_unit_is_left_whole_that_has_gradients(plan: Fsdp2Plan, expected: str) -> None:
    assert told(F, B, QUIET, CLIP, plan=plan) == expected


def test_fsdp1_clips_what_its_units_have() -> None:
    given = make(fsdp1(""), program=(F, B, QUIET, CLIP))
    check(given)
    assert "clipped_whole" not in case_features(anatomy(given))
