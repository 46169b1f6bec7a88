"""Trainings are taken up again from disk, saved at once or in the background, and shrink to it."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Rebuild, is_sound
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample


def rebuilt(case: CaseSpec) -> list[Rebuild]:
    return [op for op in case.program if isinstance(op, Rebuild)]


def test_each_api_is_saved_both_ways() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases if rebuilt(case)]
    assert all(map(is_sound, found))
    ways = Counter((case.api, op.asynchronous) for case in found for op in rebuilt(case))
    assert ways.keys() == {("fsdp1", False), ("fsdp1", True), ("fsdp2", False), ("fsdp2", True)}
    assert min(ways.values()) > 20, ways


def test_it_shrinks_to_its_own_plan_and_to_none() -> None:
    shrinks_to(lambda case: rebuilt(case) == [Rebuild(plan=case.plan)], cases(), rebuilt)
    assert not rebuilt(minimal(cases()))


def test_a_save_in_the_background_stays_one() -> None:
    def in_background(case: CaseSpec) -> bool:
        return any(op.asynchronous for op in rebuilt(case))

    shrinks_to(
        lambda case: rebuilt(case) == [Rebuild(plan=case.plan, asynchronous=True)],
        cases(),
        in_background,
    )
