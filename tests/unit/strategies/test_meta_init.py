"""Models on the meta device are drawn in every way, in part and whole, and shrink away."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpfuzz.case import Api, CaseSpec, is_sound
from fsdpfuzz.case.meta_init import WAYS, By, MetaInit
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample

# From the first one it ends at `Positions` of a sequence: both would have to go at once.
STARTS: dict[By, int] = {"assign": 1}


def everything() -> list[CaseSpec]:
    return [case for focus in FOCUSES for case in sample(focus).cases]


def test_every_way_is_drawn_of_models_and_of_parts() -> None:
    drawn = [case for case in everything() if case.meta_init is not None]
    assert 0.05 < len(drawn) / len(everything()) < 0.08
    assert all(map(is_sound, drawn))
    found = Counter(
        (case.api, asked.by, bool(asked.part)) for case in drawn if (asked := case.meta_init)
    )
    ways = {(api, by, part) for api, ways in WAYS.items() for by in ways for part in (False, True)}
    assert found.keys() == ways
    assert min(found[way] for way in ways if not way[2]) >= 10


@pytest.mark.parametrize(("api", "by"), [(api, by) for api, ways in WAYS.items() for by in ways])
def test_it_shrinks_to_itself_alone_and_away(api: Api, by: By) -> None:
    strategy = cases(apis=(api,))
    plain = minimal(strategy)
    assert plain.meta_init is None

    def has(case: CaseSpec) -> bool:
        trains = features_of(case)["steps"] == features_of(plain)["steps"]
        return trains and case.meta_init is not None and case.meta_init.by == by

    alone = {**features_of(plain), "meta_init": by}
    shrinks_to(
        lambda case: case.meta_init == MetaInit(by=by) and dict(features_of(case)) == alone,
        strategy,
        has,
        start=STARTS.get(by, 0),
    )
