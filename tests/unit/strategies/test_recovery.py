"""Exceptions after which the program starts over are drawn on fsdp2, where torch can."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import NEWER, CaseSpec, is_sound
from fsdpfuzz.case.operations.recover import METHOD, Recover
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import drawn, features_of, sample

OFFERS = tuple(NEWER)


def recovers(case: CaseSpec) -> list[Recover]:
    return [op for op in case.program if isinstance(op, Recover)]


def test_they_are_drawn_by_all_modules_most_often_in_backward() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if recovers(case)]
    assert 0.01 < len(having) / len(found) < 0.08
    assert all(map(is_sound, having))
    assert {case.api for case in having} == {"fsdp2"}
    ways = Counter(features_of(case)["recovered"] for case in having)
    assert min(ways[way] for way in ("begin", "end")) >= 5
    assert ways["gradient"] > max(ways["begin"], ways["end"])
    assert {op.module == "" for case in having for op in recovers(case)} == {True, False}


def test_they_are_left_out_where_torch_cannot() -> None:
    others = tuple(name for name in NEWER if METHOD not in name)
    for case in drawn(cases(apis=("fsdp2",), offers=others), 150).cases:
        assert not recovers(case)


def test_they_shrink_to_one_in_the_backward_of_the_root_and_to_none() -> None:
    strategy = cases(offers=OFFERS)
    shrinks_to(lambda case: recovers(case) == [Recover()], strategy, recovers)
    assert recovers(minimal(strategy)) == []


def test_one_below_the_root_shrinks_to_a_plain_model() -> None:
    def wanted(case: CaseSpec) -> bool:
        return any(op.module for op in recovers(case))

    def simple(case: CaseSpec) -> bool:
        return len(recovers(case)) == 1 and len(case.plan.units) == 1 and len(case.program) <= 5

    shrinks_to(simple, cases(offers=OFFERS), wanted, start=1)
