"""Units that return several tensors are drawn, in each form."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, anatomy, is_sound
from fsdpfuzz.case.modules.outputs import SEVERAL, Outputs
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def nodes(case: CaseSpec) -> list[Outputs]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, Outputs)]


def unit_returns_several(case: CaseSpec) -> bool:
    a = anatomy(case)
    return any(a.by_path[path].kind == SEVERAL for path in a.units)


def test_they_are_drawn_as_units_on_both_apis() -> None:
    found = [case for case in sample("parity").cases if unit_returns_several(case)]
    assert len(found) > 10
    assert all(map(is_sound, found))
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}
    drawn = Counter((node.form, node.both) for case in found for node in nodes(case))
    assert {form for form, _ in drawn} == {"tuple", "dict", "dataclass"}
    assert {both for _, both in drawn} == {True, False}
    assert all("outputs" in features_of(case)["kinds"] for case in found)


def test_they_shrink_to_a_tuple_of_which_the_second_counts() -> None:
    def simple(case: CaseSpec) -> bool:
        forms = [(node.form, node.both) for node in nodes(case)]
        return forms == [("tuple", False)] and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), unit_returns_several)
    assert nodes(minimal(cases())) == []
