"""Both lists of units to prefetch are drawn, the next ones mostly, and shrink to none."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample

LISTS = ("prefetched_in_forward", "prefetched_in_backward")


def lists(case: CaseSpec, name: str) -> list[tuple[str, ...]]:
    units: tuple[Any, ...] = case.plan.units
    return [named for unit in units if (named := getattr(unit, name, ()))]


@pytest.mark.parametrize("name", LISTS)
def test_they_are_drawn(name: str) -> None:
    drawn = [c for focus in FOCUSES for c in sample(focus).cases]
    several = [c for c in drawn if c.api == "fsdp2" and len(c.plan.units) > 1]
    having = [case for case in several if lists(case, name)]
    assert 0.05 < len(having) / len(several) < 0.25
    assert all(map(is_sound, having))
    assert {1, 2} <= {len(named) for case in having for named in lists(case, name)}


@pytest.mark.parametrize("name", LISTS)
def test_they_shrink_to_one_name_and_to_none(name: str) -> None:
    def simple(case: CaseSpec) -> bool:
        alone = len(case.plan.units) == 2 and len(case.program) <= 3
        return [len(named) for named in lists(case, name)] == [1] and alone

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: lists(case, name))
    assert not any(lists(minimal(cases(apis=("fsdp2",))), name) for name in LISTS)
