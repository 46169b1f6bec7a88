"""Parametrized layers are drawn in every form, under every way of wrapping, and shrink."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Fsdp1Plan, anatomy, is_sound
from fsdpfuzz.case.modules import Parametrized
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything, sample


def nodes(case: CaseSpec) -> list[Parametrized]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, Parametrized)]


def test_they_are_drawn_on_both_apis() -> None:
    found = [case for case in sample("parity").cases if nodes(case)]
    assert 15 <= len(found) <= 80
    assert all(map(is_sound, found))
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}


def test_they_are_drawn_in_every_form_and_as_units() -> None:
    told = Counter[str]()
    for case in everything():
        a = anatomy(case)
        own = {p.path for p in a.places if isinstance(p.node, Parametrized)}
        told.update({node.form for node in nodes(case)})
        told["unit"] += bool(own.intersection(a.units))
        frozen = {fqn.rpartition(".")[2] for fqn in case.frozen}
        told["frozen in part"] += len(frozen & {"original0", "original1"}) == 1
        plan = case.plan
        by_class = isinstance(plan, Fsdp1Plan) and plan.wrap == "module_classes"
        told["by class"] += by_class and bool(own.intersection(a.units))
    assert min(told[form] for form in ("weight_norm", "weight_norm_dim1", "orthogonal")) >= 30, told
    assert min(told[name] for name in ("unit", "frozen in part", "by class")) >= 10, told


def test_no_rotation_is_computed_in_a_low_dtype() -> None:
    low = Counter[str]()
    for case in everything():
        for a in anatomy(case).under_each_plan:
            for place in a.places:
                owner = a.owners[place.parameters[-1].fqn] if place.parameters else None
                told = None if owner is None else a.options[owner].precision
                if isinstance(place.node, Parametrized) and told is not None:
                    low[place.node.form] += told.param is not None
    assert low["weight_norm"] >= 20
    assert low["orthogonal"] == 0


def test_they_shrink_to_weight_norm() -> None:
    def simple(case: CaseSpec) -> bool:
        return nodes(case) == [Parametrized(out=1, bias=False)] and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: bool(nodes(case)), start=1)
    assert nodes(minimal(cases())) == []
