"""Where gradients of a unit may go past the hook that an earlier forward left."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    Checkpoint,
    Forward,
    Idle,
    Linear,
    Op,
    Sequential,
    anatomy,
    check,
    unit_features,
)
from fsdpfuzz.case.modules import LayerDrop
from fsdpfuzz.case.operations import Interrupt
from tests.unit.case.test_units import fsdp1, make

F, DROPPED, QUIET = Forward(), Forward(drop=True), Forward(grad=False)
B = Backward()


# As they were run on gloo, torch 2.13.0, with a lower param_dtype: where it is off, gradients are
# right. Where it is on they are wrong for want of a graph, and may be for one that is made again.
@pytest.mark.parametrize(
    ("program", "around", "plain"),
    [
        ((F, B), "off", "off"),
        ((DROPPED, F, B), "on", "on"),
        ((DROPPED, DROPPED, F, B), "on", "on"),
        ((QUIET, F, B), "off", "off"),
        ((F, DROPPED, B), "on", "off"),
        ((F, B, DROPPED), "off", "off"),
        ((F, B, DROPPED, F, B), "on", "on"),
        ((F, F, B), "on", "off"),
        ((F, B, F, B), "off", "off"),
        ((Interrupt(module="1.0", done=True), F, B), "on", "on"),
    ],
)
def test_a_graph_is_left_behind_or_made_again(
    program: tuple[Op, ...], around: str, plain: str
) -> None:
    recomputed = Checkpoint(path="", side="around")
    for checkpoints, expected in (((recomputed,), around), ((), plain)):
        given = make(fsdp1(""), program=program, checkpoints=checkpoints)
        check(given)
        assert unit_features(anatomy(given), "")["second_graph"] == expected


def test_a_forward_may_leave_out_what_the_unit_manages() -> None:
    model = Sequential(children=(Linear(out=4), LayerDrop(children=(Linear(out=4), Idle()))))
    for program, outer in (((F, F, B), "on"), ((F, B), "off")):
        given = make(fsdp1("0", "1"), model=model, program=program)
        check(given)
        a = anatomy(given)
        assert unit_features(a, "1")["second_graph"] == outer
        assert unit_features(a, "0")["second_graph"] == "off"


def test_a_reentrant_checkpoint_makes_its_graph_from_what_the_last_forward_left() -> None:
    for reentrant, expected in ((True, "on"), (False, "off")):
        checkpoint = Checkpoint(path="1", reentrant=reentrant)
        program = (F, DROPPED, B)
        given = make(fsdp1("0", "1"), program=program, checkpoints=(checkpoint,))
        check(given)
        a = anatomy(given)
        assert unit_features(a, "1")["second_graph"] == expected
        assert unit_features(a, "0")["second_graph"] == "off"
