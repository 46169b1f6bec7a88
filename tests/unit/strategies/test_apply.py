"""Functions are applied in a few cases, to the root and to units, on both APIs."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.operations import Apply
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def applies(case: CaseSpec) -> list[Apply]:
    return [op for op in case.program if isinstance(op, Apply)]


def test_they_are_drawn_on_both_apis() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if applies(case)]
    assert 0.02 < len(having) / len(found) < 0.1
    assert all(map(is_sound, having))
    drawn = Counter((case.api, features_of(case)["applied"]) for case in having)
    for way in ("scaled", "smoothed"):
        assert min(drawn["fsdp1", way], drawn["fsdp2", way]) >= 5
    assert {op.module == "" for case in having for op in applies(case)} == {True, False}


def test_they_shrink_to_one_that_scales_all_and_to_none() -> None:
    shrinks_to(lambda case: applies(case) == [Apply()], cases(), applies)
    assert applies(minimal(cases())) == []


def test_several_shrink_to_one_of_a_unit_in_a_short_program() -> None:
    def wanted(case: CaseSpec) -> bool:
        return any(op.module for op in applies(case))

    def simple(case: CaseSpec) -> bool:
        return len(applies(case)) == 1 and len(case.program) <= 4

    shrinks_to(simple, cases(), wanted, start=3)
