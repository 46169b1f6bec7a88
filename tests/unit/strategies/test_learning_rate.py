"""Learning rates change in a few cases, in both directions, most where state is saved."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.operations.learning_rate import LearningRate
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def changed(case: CaseSpec) -> list[LearningRate]:
    return [op for op in case.program if isinstance(op, LearningRate)]


def test_it_is_drawn_on_both_apis_and_with_what_saves_the_optimizer() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if changed(case)]
    assert 0.05 < len(having) / len(found) < 0.15
    assert all(map(is_sound, having))
    drawn = Counter((case.api, features_of(case)["learning_rate"]) for case in having)
    assert len(drawn) == 6
    assert min(drawn.values()) > 10
    for feature in ("optim_state", "rebuilt", "transferred"):
        assert sum(features_of(case)[feature] != "no" for case in having) > 10, feature


def test_it_shrinks_to_one_that_halves_and_to_none() -> None:
    def simple(case: CaseSpec) -> bool:
        return [op.factor for op in changed(case)] == [0.5]

    shrinks_to(simple, cases(apis=("fsdp2",)), changed)
    assert changed(minimal(cases())) == []


def test_it_shrinks_to_one_that_raises() -> None:
    def raised(case: CaseSpec) -> bool:
        return any(op.factor > 1.0 for op in changed(case))

    def simple(case: CaseSpec) -> bool:
        return len(changed(case)) == 1

    shrinks_to(simple, cases(), raised)
