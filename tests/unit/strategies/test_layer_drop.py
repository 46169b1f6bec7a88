"""Lists of layers of which one is left out are drawn under both APIs, and shrink."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Linear, anatomy, is_sound, unit_features
from fsdpfuzz.case.modules import LayerDrop
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything, sample


def nodes(case: CaseSpec) -> list[LayerDrop]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, LayerDrop)]


def test_they_are_drawn_on_both_apis() -> None:
    found = [case for case in sample("parity").cases if nodes(case)]
    assert 10 <= len(found) <= 80
    assert all(map(is_sound, found))
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}


def test_units_are_left_out_of_some_forwards() -> None:
    told = Counter[str]()
    for case in everything():
        if not nodes(case):
            continue
        a = anatomy(case)
        told.update({f"start {node.start}" for node in nodes(case)})
        units = [unit_features(a, path) for path in a.units]
        for name in ("left_out", "left_unreduced"):
            told[name] += any(unit[name] == "on" for unit in units)
        told["recomputed"] += bool(case.checkpoints)
    assert min(told[f"start {i}"] for i in range(4)) >= 10, told
    assert min(told[name] for name in ("left_out", "recomputed")) >= 30, told
    assert told["left_unreduced"] >= 5, told


def test_they_shrink_to_two_layers_both_of_which_the_first_forward_calls() -> None:
    layer = Linear(out=1, bias=False)

    def simple(case: CaseSpec) -> bool:
        return case.model == LayerDrop(children=(layer, layer)) and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: bool(nodes(case)), start=2)
    assert nodes(minimal(cases())) == []
