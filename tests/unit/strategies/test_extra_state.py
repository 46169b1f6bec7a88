"""Extra state is drawn in both forms, saved and evaluated, and shrinks."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, StateDict, anatomy, is_sound
from fsdpfuzz.case.checkpoints import evaluates
from fsdpfuzz.case.modules import ExtraState
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything


def nodes(case: CaseSpec) -> list[ExtraState]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, ExtraState)]


def test_it_is_drawn_in_both_forms_and_saved() -> None:
    told = Counter[str]()
    for case in everything():
        if not nodes(case):
            continue
        assert is_sound(case)
        a = anatomy(case)
        told[case.api] += 1
        told["dict"] += any(node.as_dict for node in nodes(case))
        told["tensor"] += not all(node.as_dict for node in nodes(case))
        counts = any(node.counts for node in nodes(case))
        told["counts"] += counts
        told["evaluated"] += counts and evaluates(a)
        told["unit"] += any(isinstance(a.by_path[path].node, ExtraState) for path in a.units)
        told["saved"] += any(isinstance(op, StateDict) for op in case.program)
        told["stored"] += any(op.stores for op in case.program)
    assert len(told) == 9
    assert min(told.values()) >= 10, told


def test_it_shrinks_to_a_tensor_that_stays_as_it_is() -> None:
    def simple(case: CaseSpec) -> bool:
        return nodes(case) == [ExtraState()] and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), nodes)
    assert nodes(minimal(cases())) == []
