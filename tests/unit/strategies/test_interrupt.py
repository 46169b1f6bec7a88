"""Exceptions in forward are drawn now and then, by any module, on both APIs."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.operations.interrupt import Interrupt
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def interrupts(case: CaseSpec) -> list[Interrupt]:
    return [op for op in case.program if isinstance(op, Interrupt)]


def test_they_are_drawn_on_both_apis() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if interrupts(case)]
    assert 0.02 < len(having) / len(found) < 0.1
    assert all(map(is_sound, having))
    drawn = Counter((case.api, features_of(case)["interrupted"]) for case in having)
    assert min(drawn[api, way] for api in ("fsdp1", "fsdp2") for way in ("begin", "end")) >= 5
    assert {op.module == "" for case in having for op in interrupts(case)} == {True, False}


def test_they_shrink_to_one_of_the_root_and_to_none() -> None:
    shrinks_to(lambda case: interrupts(case) == [Interrupt()], cases(), interrupts)
    assert interrupts(minimal(cases())) == []


def test_one_below_the_root_shrinks_to_a_plain_model() -> None:
    def wanted(case: CaseSpec) -> bool:
        return any(op.module and op.done for op in interrupts(case))

    def simple(case: CaseSpec) -> bool:
        return len(interrupts(case)) == 1 and len(case.plan.units) == 1 and len(case.program) <= 5

    shrinks_to(simple, cases(apis=("fsdp1",)), wanted, start=1)
