"""Units are gathered and sharded by hand in some programs of fsdp2, and shrink to none."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpfuzz.case import FEATURES, CaseSpec, is_sound
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal
from tests.unit.strategies.sample import features_of, sample


@pytest.mark.parametrize("name", ["unsharded", "resharded"])
def test_every_way_is_drawn(name: str) -> None:
    second = [c for focus in FOCUSES for c in sample(focus).cases if c.api == "fsdp2"]
    having = [case for case in second if features_of(case)[name] != "no"]
    assert 0.04 < len(having) / len(second) < 0.15
    assert all(map(is_sound, having))
    drawn = Counter(features_of(case)[name] for case in having)
    ways = set(FEATURES[name].values) - {"no", "several"}
    assert ways <= set(drawn)


@pytest.mark.parametrize("name", ["unsharded", "resharded"])
def test_they_shrink_to_one_and_to_none(name: str) -> None:
    def has(case: CaseSpec) -> bool:
        return features_of(case)[name] != "no"

    case = minimal(cases(apis=("fsdp2",)), has)
    assert [op.kind() for op in case.program].count(name.removesuffix("ed")) == 1
    assert not has(minimal(cases(apis=("fsdp2",))))
