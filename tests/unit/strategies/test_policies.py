"""fsdp1's ways to tell of units are all drawn, and shrink towards units made by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpfuzz.case import CaseSpec, Fsdp1Plan, anatomy
from fsdpfuzz.case.policies import NAMES
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import shrinks_to
from tests.unit.strategies.sample import features_of, sample

OTHERS = ("enable_wrap", "size_policy", "transformer_policy", "lambda_policy")


def way(case: CaseSpec) -> str:
    return case.plan.wrap if isinstance(case.plan, Fsdp1Plan) else ""


def test_all_of_them_are_drawn() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    drawn = Counter(map(way, found))
    assert set(drawn) == {"", "nested", *NAMES}
    first = drawn.total() - drawn[""]
    assert all(0.03 < drawn[name] / first < 0.15 for name in OTHERS)
    told = Counter(
        (name, features_of(case)[name], features_of(case)["precision"])
        for case in found
        if way(case) == "size_policy"
        for name in ("size_leaves", "size_excluded")
    )
    assert min(told[name, "on", "off"] for name in ("size_leaves", "size_excluded")) > 10
    assert told["size_excluded", "on", "on"] > 5


def test_sizes_make_units_below_the_root() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    sized = [case for case in found if way(case) == "size_policy"]
    most = [case for case in sized if len(anatomy(case).units) > 1]
    # What is ignored, drawn later, may leave too little.
    assert len(most) > 0.95 * len(sized)


@pytest.mark.parametrize("name", OTHERS)
def test_each_shrinks_to_few_units(name: str) -> None:
    def simple(case: CaseSpec) -> bool:
        plain = all(unit.sharding == "FULL_SHARD" for unit in anatomy(case).fsdp1_options.values())
        a = anatomy(case)
        # The simplest number that makes a unit below the root makes one of each of two layers, an
        # idle one and another.
        two = name == "size_policy" and len(a.places) == 4 and case.model.kind() == "sequential"
        # A class may be found several times, in a switch that no single step takes apart.
        few = 5 if name == "transformer_policy" else 2 + two
        return plain and len(a.units) <= few and len(case.program) == 3

    shrinks_to(simple, cases(apis=("fsdp1",)), lambda case: way(case) == name, start=1)


def test_the_plainest_is_by_hand() -> None:
    def several(case: CaseSpec) -> bool:
        return len(anatomy(case).units) > 1

    shrinks_to(lambda case: way(case) == "nested", cases(apis=("fsdp1",)), several)
