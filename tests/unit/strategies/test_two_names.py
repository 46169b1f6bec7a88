"""A module with two names is drawn in units and recomputed, frozen and saved, and shrinks."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, StateDict, anatomy, is_sound, within
from fsdpfuzz.case.modules import TwoNames
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything


def paths(case: CaseSpec) -> list[str]:
    return [p.path for p in anatomy(case).places if isinstance(p.node, TwoNames)]


def test_it_is_drawn_with_what_asks_for_names() -> None:
    told = Counter[str]()
    for case in everything():
        held = paths(case)
        if not held:
            continue
        assert is_sound(case)
        a = anatomy(case)
        told[case.api] += 1
        told["frozen"] += any(within(name, path) for path in held for name in case.frozen)
        told["unit"] += any(path in a.unit_at for path in held)
        told["recomputed"] += any(within(p, c.path) for p in held for c in case.checkpoints)
        told["saved"] += any(isinstance(op, StateDict) for op in case.program)
        told["optimizer saved"] += any(op.saves_optimizer for op in case.program)
        told["renewed"] += any(op.renews for op in case.program)
    assert len(told) == 8
    assert min(told.values()) >= 10, told


def test_it_shrinks_to_one_without_a_bias() -> None:
    def simple(case: CaseSpec) -> bool:
        (path,) = paths(case)
        return anatomy(case).by_path[path].node == TwoNames(bias=False) and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: len(paths(case)) == 1)
    assert paths(minimal(cases())) == []
