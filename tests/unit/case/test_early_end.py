"""A unit of fsdp2 with which backward is done before anything asks for a recomputation."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Activation,
    Branches,
    Idle,
    Linear,
    Method,
    Node,
    Repeat,
    Residual,
    Sequential,
    anatomy,
    unit_features,
)
from fsdpfuzz.case.modules import Keyed, Outputs
from tests.unit.case.test_units import fsdp2, make

IDLE, LAYER = Idle(), Linear(out=2)


@pytest.mark.parametrize(
    ("node", "early"),
    [
        (IDLE, "on"),
        (LAYER, "off"),
        (Activation(), "off"),
        (Residual(body=IDLE), "on"),
        (Residual(body=LAYER), "off"),
        (Sequential(children=(IDLE, Residual(body=IDLE))), "on"),
        (Sequential(children=(Activation(), IDLE)), "off"),
        *(
            (Branches(children=(IDLE, IDLE), merge=merge), "on")
            for merge in ("concat", "sum", "stack")
        ),
        (Branches(children=(IDLE, LAYER)), "off"),
        (Keyed(body=IDLE, added=True), "on"),
        (Outputs(body=IDLE, both=True), "on"),
        (Outputs(body=LAYER), "off"),
        (Method(body=Residual(body=IDLE)), "on"),
        (Repeat(body=Sequential(children=(LAYER, LAYER)), times=2), "on"),
    ],
)
def test_it_is_one_that_saves_nothing_or_is_called_again(node: Node, early: str) -> None:
    model = Sequential(children=(LAYER, node))
    assert unit_features(anatomy(make(fsdp2("", "1"), model=model)), "1")["early_end"] == early
