"""Layers that reuse keys and values are drawn on both APIs, as units, and shrink."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, anatomy, is_sound
from fsdpfuzz.case.modules import KvReuse
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything


def nodes(case: CaseSpec) -> list[KvReuse]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, KvReuse)]


def test_they_are_drawn_as_units_with_heads_that_share() -> None:
    told = Counter[str]()
    for case in everything():
        if not nodes(case):
            continue
        assert is_sound(case)
        a = anatomy(case)
        told[case.api] += 1
        kinds = {a.by_path[path].kind for path in a.units}
        told.update(kinds & {"keys_values", "reusing"})
        told["shared"] += any(node.kv_heads < node.heads for node in nodes(case))
        told["three"] += any(node.layers == 3 for node in nodes(case))
        told["recomputed"] += bool(case.checkpoints)
    assert len(told) == 7
    assert min(told.values()) >= 10, told


def test_they_shrink_to_two_layers_of_one_head() -> None:
    def simple(case: CaseSpec) -> bool:
        return nodes(case) == [KvReuse()] and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), nodes)
    assert nodes(minimal(cases())) == []
