"""Parameters are changed by the user in a few cases, in both ways where FSDP has them."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.operations.rescale import Rescale
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def rescaled(case: CaseSpec) -> list[Rescale]:
    return [op for op in case.program if isinstance(op, Rescale)]


def test_it_is_drawn_on_both_apis() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if rescaled(case)]
    assert 0.02 < len(having) / len(found) < 0.1
    assert all(map(is_sound, having))
    drawn = Counter((case.api, features_of(case)["rescaled"]) for case in having)
    assert min(drawn["fsdp1", "in place"], drawn["fsdp1", "new data"]) > 10
    assert drawn["fsdp2", "in place"] > 10


def test_it_shrinks_to_one_parameter_in_place_and_to_none() -> None:
    def simple(case: CaseSpec) -> bool:
        return [(len(op.parameters), op.new_data) for op in rescaled(case)] == [(1, False)]

    shrinks_to(simple, cases(apis=("fsdp2",)), rescaled)
    assert rescaled(minimal(cases())) == []


def test_it_shrinks_to_one_parameter_of_new_data() -> None:
    def wanted(case: CaseSpec) -> bool:
        return any(op.new_data for op in rescaled(case))

    shrinks_to(lambda case: [len(op.parameters) for op in rescaled(case)] == [1], cases(), wanted)
