"""What is kept for the loss is drawn in all forms, in units and recomputed, and shrinks."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, anatomy, features, is_sound, within
from fsdpfuzz.case.modules import SideOutput
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything


def nodes(case: CaseSpec) -> list[SideOutput]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, SideOutput)]


def test_it_is_drawn_in_all_forms() -> None:
    told = Counter[str]()
    for case in everything():
        if not nodes(case):
            continue
        assert is_sound(case)
        a = anatomy(case)
        told[case.api] += 1
        told.update(f"on {node.on}" for node in nodes(case))
        places = [p.path for p in a.places if isinstance(p.node, SideOutput)]
        told["recomputed"] += any(within(p, c.path) for p in places for c in a.case.checkpoints)
        told["unit"] += any(path in a.unit_at for path in places)
        told["first"] += features(case)["side_loss"] == "first"
    assert len(told) == 8
    assert min(told.values()) >= 10, told


def test_it_shrinks_to_what_is_kept_of_the_output_itself() -> None:
    def simple(case: CaseSpec) -> bool:
        (node,) = nodes(case)
        return node.on == "no" and len(anatomy(case).places) <= 4 and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: len(nodes(case)) == 1, start=2)
    assert nodes(minimal(cases())) == []
