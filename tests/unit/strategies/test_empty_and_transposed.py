"""Parameters without elements, and those that are not contiguous, are drawn seldom, and shrink."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, anatomy, is_sound
from fsdpfuzz.case.modules import Empty, Transposed
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything


def nodes(case: CaseSpec, kind: type[Empty | Transposed]) -> list[Empty | Transposed]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, kind)]


def test_they_are_drawn_on_both_apis_but_seldom() -> None:
    told = Counter[tuple[str, str]]()
    for case in everything():
        told["all", case.api] += 1
        for kind in (Empty, Transposed):
            told[kind.kind(), case.api] += bool(nodes(case, kind))
            assert not nodes(case, kind) or is_sound(case)
    assert 0.005 <= told["empty", "fsdp1"] / told["all", "fsdp1"] <= 0.03, told
    assert 0.01 <= told["transposed", "fsdp1"] / told["all", "fsdp1"] <= 0.05, told
    # Which fails with the one and refuses the other.
    assert 0.001 <= told["empty", "fsdp2"] / told["all", "fsdp2"] <= 0.01, told
    assert 1 <= told["transposed", "fsdp2"] <= 0.02 * told["all", "fsdp2"], told


def test_they_are_frozen_and_trained_with_others_and_alone() -> None:
    told = Counter[str]()
    for case in everything():
        a = anatomy(case)
        empty = [p for p in a.parameters if not p.numel]
        told.update("frozen" if p.fqn in a.frozen else "trained" for p in empty)
        alone = {path for path, owned in a.owned.items() if sum(p.numel for p in owned) == 0}
        told.update("alone" if a.owners[p.fqn] in alone else "with others" for p in empty)
    assert min(told[n] for n in ("frozen", "trained", "alone", "with others")) >= 10, told


def test_they_shrink() -> None:
    def simple(case: CaseSpec) -> bool:
        return nodes(case, Transposed) == [Transposed(out=2, bias=False)] and len(case.program) <= 3

    fsdp1 = cases(apis=("fsdp1",))
    shrinks_to(simple, fsdp1, lambda case: bool(nodes(case, Transposed)))

    def alone(case: CaseSpec) -> bool:
        return nodes(case, Empty) == [Empty()] and len(case.program) <= 3

    shrinks_to(alone, fsdp1, lambda case: bool(nodes(case, Empty)))
    assert not any(nodes(minimal(cases()), kind) for kind in (Empty, Transposed))
