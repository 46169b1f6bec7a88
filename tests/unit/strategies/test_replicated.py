"""Units of `replicate` are drawn beside, below and above others, and shrink to none."""

from __future__ import annotations

from fsdpfuzz.case import NEWER, CaseSpec, anatomy, features, is_sound, within
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import drawn


def replicas(case: CaseSpec) -> list[str]:
    return [path for path, unit in anatomy(case).options.items() if is_replica(unit)]


def test_they_are_drawn_in_few_cases_in_all_ways() -> None:
    second = drawn(cases(apis=("fsdp2",), offers=tuple(NEWER)), 800).cases
    having = [case for case in second if replicas(case)]
    assert 0.03 < len(having) / len(second) < 0.1
    assert all(map(is_sound, having))
    told = [features(case)["replicated"] for case in having]
    assert {"some", "on"} <= set(told) <= {"some", "across", "on"}
    # Within each other: what is sharded is no part of what is replicated around it.
    assert any(
        within(p, q) for c in having for p in anatomy(c).roots for q in anatomy(c).roots if p != q
    )


def test_they_shrink_to_the_root_and_to_none() -> None:
    strategy = cases(apis=("fsdp2",), offers=tuple(NEWER))

    def simple(case: CaseSpec) -> bool:
        return replicas(case) == [""] and len(case.plan.units) == 1 and len(case.program) <= 3

    shrinks_to(simple, strategy, replicas)
    assert replicas(minimal(strategy)) == []


def test_an_older_torch_is_given_none() -> None:
    assert not any(map(replicas, drawn(cases(apis=("fsdp2",)), 150).cases))
