"""Siblings are drawn as one unit, tied ones among them, and shrink to none."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, anatomy, is_sound
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample


def lists(case: CaseSpec) -> list[tuple[str, ...]]:
    a = anatomy(case)
    return [own for unit in a.units if len(own := a.modules_of(unit)) > 1]


def test_lists_of_modules_are_drawn() -> None:
    second = [c for focus in FOCUSES for c in sample(focus).cases if c.api == "fsdp2"]
    having = [case for case in second if lists(case)]
    assert 0.03 < len(having) / len(second) < 0.15
    assert all(map(is_sound, having))
    sizes = {len(modules) for case in having for modules in lists(case)}
    assert {2, 3} <= sizes
    tied = [
        case
        for case in having
        for tie in case.ties
        if anatomy(case).owners[tie.source] == anatomy(case).owners[tie.target]
        and tie.source.rpartition(".")[0] != tie.target.rpartition(".")[0]
    ]
    assert len(tied) >= 3


def test_it_shrinks_to_two_layers_and_to_none() -> None:
    def simple(case: CaseSpec) -> bool:
        alone = len(case.plan.units) == 2 and len(case.program) <= 3
        return [len(modules) for modules in lists(case)] == [2] and alone

    shrinks_to(simple, cases(apis=("fsdp2",)), lists)
    assert lists(minimal(cases(apis=("fsdp2",)))) == []
