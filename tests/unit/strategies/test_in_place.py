"""Outputs and views that are changed in place are drawn, also those of units, and shrink away."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Linear, anatomy, is_sound
from fsdpfuzz.case.modules import InPlace
from fsdpfuzz.case.modules.in_place import changed_views
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def nodes(case: CaseSpec) -> list[InPlace]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, InPlace)]


def test_they_are_drawn_on_both_apis() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases if nodes(case)]
    assert all(map(is_sound, found))
    drawn = Counter((case.api, features_of(case)["in_place"]) for case in found)
    for api in ("fsdp1", "fsdp2"):
        assert min(drawn[api, value] for value in ("output", "view")) > 20, drawn
    views = [c for c in found if not changed_views(anatomy(c)).isdisjoint(anatomy(c).units)]
    assert len(views) > 20


def test_they_shrink_to_one_layer_and_to_none() -> None:
    def simple(case: CaseSpec) -> bool:
        (node,) = nodes(case)
        return isinstance(node.body, Linear) and not node.view and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), nodes)
    assert nodes(minimal(cases())) == []
