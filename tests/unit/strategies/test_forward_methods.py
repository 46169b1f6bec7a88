"""Units that are called by another method than forward are drawn, by the model and the program."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Forward, Method, anatomy, is_sound
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, large


def nodes(case: CaseSpec) -> list[Method]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, Method)]


def by_method(case: CaseSpec) -> list[bool]:
    return [op.by_method for op in case.program if isinstance(op, Forward)]


def test_each_way_is_drawn_on_the_api_that_has_it() -> None:
    drawn = Counter(
        features_of(case)["forward_method"] for case in large("parity") if case.api == "fsdp2"
    )
    assert min(drawn[way] for way in ("inner", "root", "both")) >= 5, drawn
    assert not any(nodes(case) for case in large("parity") if case.api == "fsdp1")
    called = [case for case in large("parity") if any(by_method(case))]
    assert all(map(is_sound, called))
    assert {all(by_method(case)) for case in called} == {True, False}


def test_they_shrink_to_calls_by_forward() -> None:
    def simple(case: CaseSpec) -> bool:
        return by_method(case) == [True] and len(case.plan.units) == 1 and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: any(by_method(case)))

    def inner(case: CaseSpec) -> bool:
        return not any(by_method(case)) and len(nodes(case)) == 1 and len(case.program) <= 3

    shrinks_to(inner, cases(apis=("fsdp2",)), nodes)
    assert nodes(minimal(cases(apis=("fsdp2",)))) == []
