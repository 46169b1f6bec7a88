"""Models of fsdp2 go elsewhere and come back in a few cases, in both ways."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.operations import Convert
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def converts(case: CaseSpec) -> list[Convert]:
    return [op for op in case.program if isinstance(op, Convert)]


def behind_a_backward(case: CaseSpec) -> bool:
    return any(a.gives_gradients and isinstance(b, Convert) for a, b in pairwise(case.program))


def test_it_is_drawn_with_fsdp2_alone() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if converts(case)]
    assert 0.01 < len(having) / len(found) < 0.06
    assert all(map(is_sound, having))
    drawn = Counter((case.api, features_of(case).get("converted")) for case in having)
    assert min(drawn["fsdp2", "dtype"], drawn["fsdp2", "device"]) > 10
    assert {api for api, _ in drawn} == {"fsdp2"}
    assert 0.1 < sum(map(behind_a_backward, having)) / len(having) < 0.8


def test_it_shrinks_to_one_cast_and_to_none() -> None:
    shrinks_to(lambda case: converts(case) == [Convert()], cases(apis=("fsdp2",)), converts)
    assert converts(minimal(cases())) == []
