"""Experts are drawn under both APIs, as units and recomputed, and shrink."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Linear, anatomy, is_sound, join, within
from fsdpfuzz.case.modules import Experts
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything, sample


def nodes(case: CaseSpec) -> list[Experts]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, Experts)]


def test_they_are_drawn_on_both_apis() -> None:
    found = [case for case in sample("parity").cases if nodes(case)]
    assert 10 <= len(found) <= 80
    assert all(map(is_sound, found))
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}


def test_they_are_units_and_recomputed() -> None:
    told = Counter[str]()
    for case in everything():
        for place in anatomy(case).places:
            if not isinstance(place.node, Experts):
                continue
            held = join(place.path, "experts")
            inner = [path for path in anatomy(case).units if within(path, held)]
            told[f"top {place.node.top}"] += 1
            told[f"start {place.node.start}"] += 1
            told["alike" if len(set(place.node.children)) == 1 else "different"] += 1
            told["unit"] += bool(inner)
            told["recomputed"] += any(within(place.path, c.path) for c in case.checkpoints)
    assert min(told[name] for name in ("top 1", "top 2", "alike", "different")) >= 30, told
    assert min(told[f"start {i}"] for i in range(3)) >= 10, told
    assert min(told[name] for name in ("unit", "recomputed")) >= 30, told


def test_they_shrink_to_two_alike_one_of_which_each_row_goes_to() -> None:
    layer = Linear(out=1, bias=False)

    def simple(case: CaseSpec) -> bool:
        return case.model == Experts(children=(layer, layer)) and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: bool(nodes(case)), start=3)
    assert nodes(minimal(cases())) == []
