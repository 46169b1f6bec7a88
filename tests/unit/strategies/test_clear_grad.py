"""Gradients are dropped in one case in twenty or more, of parts of units and of whole ones."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.operations.clear_grad import ClearGrad
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def cleared(case: CaseSpec) -> list[ClearGrad]:
    return [op for op in case.program if isinstance(op, ClearGrad)]


def test_it_is_drawn_on_both_apis() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if cleared(case)]
    assert 0.04 < len(having) / len(found) < 0.16
    assert all(map(is_sound, having))
    drawn = Counter((case.api, features_of(case)["cleared"]) for case in having)
    parts = ("part", "whole", "mixed")
    assert drawn.keys() == {(api, part) for api in ("fsdp1", "fsdp2") for part in parts}
    assert drawn["fsdp1", "part"] > 10


def test_it_shrinks_to_one_parameter_and_to_none() -> None:
    shrinks_to(lambda case: [len(op.parameters) for op in cleared(case)] == [1], cases(), cleared)
    assert cleared(minimal(cases())) == []
