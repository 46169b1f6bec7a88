"""Whose name is a part of another parameter's."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import Gain, Linear, Node, Sequential, Tie
from tests.unit.case.test_hazards import having
from tests.unit.case.test_units import fsdp2, make

LAYER = Linear(out=4, bias=False)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Sequential(children=(Sequential(children=(LAYER, Gain())), Gain())), ["1.gain"]),
        (Sequential(children=(Sequential(children=(LAYER, LAYER)), Gain())), []),
        (Sequential(children=(LAYER,) * 12), ["0.weight", "1.weight"]),
        (Sequential(children=(LAYER,) * 10), []),
    ],
)
def test_names_that_hold_each_other(model: Node, expected: list[str]) -> None:
    assert having(make(fsdp2(""), model=model), "name_within") == expected


def test_a_name_that_is_a_second_one_of_a_tied_parameter_stands_nowhere() -> None:
    inner = Sequential(children=(LAYER, LAYER))
    model = Sequential(children=(LAYER, inner))
    assert having(make(fsdp2(""), model=model), "name_within") == ["0.weight"]
    ties = (Tie(source="0.weight", target="1.0.weight"),)
    assert having(make(fsdp2(""), model=model, ties=ties), "name_within") == []
