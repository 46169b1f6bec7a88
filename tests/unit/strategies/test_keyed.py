"""Units and checkpoints on what is called with keywords are drawn, in each way."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, anatomy, is_sound
from fsdpfuzz.case.modules import BY_KEYWORD, Keyed
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def nodes(case: CaseSpec) -> list[Keyed]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, Keyed)]


def unit_is_given_keywords(case: CaseSpec) -> bool:
    a = anatomy(case)
    return any(a.by_path[path].kind == BY_KEYWORD for path in a.units)


def test_they_are_drawn_as_units_on_both_apis() -> None:
    found = [case for case in sample("parity").cases if unit_is_given_keywords(case)]
    assert len(found) > 10
    assert all(map(is_sound, found))
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}
    assert {features_of(case)["keywords"] for case in found} == {"input", "added", "several"}


def test_checkpoints_of_every_kind_are_drawn_on_them() -> None:
    drawn = Counter(
        (checkpoint.kind, checkpoint.reentrant)
        for focus in ("parity", "checkpoint")
        for case in sample(focus).cases
        for checkpoint in case.checkpoints
        if anatomy(case).by_path[checkpoint.path].kind == BY_KEYWORD
    )
    assert {kind for kind, _ in drawn} == {
        "wrapper",
        "function",
        "offload",
        "function_offload",
        "composable",
    }
    # Of the reentrant ways a wrapper alone packs keywords.
    assert {kind for kind, reentrant in drawn if reentrant} == {"wrapper"}


def test_they_shrink_to_the_input_alone() -> None:
    def simple(case: CaseSpec) -> bool:
        return [node.added for node in nodes(case)] == [False] and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), unit_is_given_keywords)
    assert nodes(minimal(cases())) == []
