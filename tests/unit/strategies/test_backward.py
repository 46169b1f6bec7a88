"""Backwards that go back twice are drawn, and shrink to the only iteration and to none."""

from __future__ import annotations

from fsdpfuzz.case import Backward, CaseSpec, Forward, Step, is_sound
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample


def twice(case: CaseSpec) -> bool:
    return any(isinstance(op, Backward) and op.again for op in case.program)


def of_each(case: CaseSpec) -> bool:
    return any(op.parts_losses for op in case.program)


def test_it_is_drawn_mostly_with_fsdp2() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if twice(case)]
    assert all(map(is_sound, having))
    second = sum(case.api == "fsdp2" for case in having)
    assert 0.01 < second / len(found) < 0.05
    assert 5 < len(having) - second < second / 2


def test_it_shrinks_to_the_only_iteration_and_to_none() -> None:
    once = (Forward(), Backward(again=True), Step())
    shrinks_to(lambda case: case.program == once, cases(apis=("fsdp2",)), twice)
    assert not twice(minimal(cases()))


def test_a_backward_of_each_loss_is_drawn_mostly_with_fsdp2() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if of_each(case)]
    second = sum(case.api == "fsdp2" for case in having)
    assert 0.01 < second / len(found) < 0.05
    assert 2 < len(having) - second < second / 2


def test_a_backward_of_each_loss_shrinks_to_two_forwards_and_to_none() -> None:
    both = (Forward(), Forward(), Backward(each=True), Step())
    shrinks_to(lambda case: case.program == both, cases(apis=("fsdp2",)), of_each)
    assert not of_each(minimal(cases()))
