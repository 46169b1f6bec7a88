"""Some evaluations are under inference mode, hardly ever the first forward of a model."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Forward, is_sound
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def under_inference(case: CaseSpec) -> list[Forward]:
    return [op for op in case.program if isinstance(op, Forward) and op.inference]


def test_it_is_drawn_on_both_apis_and_rarely_first() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if under_inference(case)]
    assert 0.02 < len(having) / len(found) < 0.12
    assert all(map(is_sound, having))
    drawn = Counter((case.api, features_of(case)["inference_mode"]) for case in having)
    assert min(drawn["fsdp1", "later"], drawn["fsdp2", "later"]) > 10
    assert 0 < drawn["fsdp1", "first"] + drawn["fsdp2", "first"] < len(having) / 4


def test_it_shrinks_to_one_forward_and_to_none() -> None:
    shrinks_to(lambda case: len(under_inference(case)) == 1, cases(), under_inference)
    assert under_inference(minimal(cases())) == []
