"""Convolutions with batch norms are drawn, with units and checkpoints on them, and shrink."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, anatomy, is_sound
from fsdpfuzz.case.checkpoints import evaluates, recomputed_running
from fsdpfuzz.case.modules import ConvNorm
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything, features_of, sample


def nodes(case: CaseSpec) -> list[ConvNorm]:
    return [p.node for p in anatomy(case).places if isinstance(p.node, ConvNorm)]


def test_they_are_drawn_on_both_apis() -> None:
    found = [case for case in sample("parity").cases if nodes(case)]
    assert 15 <= len(found) <= 80
    assert all(map(is_sound, found))
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}
    assert {node.affine for case in found for node in nodes(case)} == {False, True}
    assert {node.channels for case in found for node in nodes(case)} == {1, 2, 3, 4}


def test_batch_norms_are_units_are_recomputed_and_run_in_eval_mode() -> None:
    found = [case for case in everything() if nodes(case)]
    told = Counter[str]()
    for case in found:
        a = anatomy(case)
        told["unit"] += any(a.by_path[path].kind == "batch_norm" for path in a.units)
        told["recomputed"] += bool(recomputed_running(a))
        told["evaluated"] += evaluates(a)
        told[f"apart in {case.api}"] += bool(a.kept_out)
        low = features_of(case)["precision"] == "on"
        told[f"low in {case.api}"] += low
    assert min(told[name] for name in ("unit", "recomputed", "evaluated")) >= 15, told
    assert min(told[name] for name in ("apart in fsdp1", "low in fsdp1", "low in fsdp2")) >= 5, told
    assert not told["apart in fsdp2"]


def test_they_shrink_to_one_channel() -> None:
    def simple(case: CaseSpec) -> bool:
        return nodes(case) == [ConvNorm()] and len(case.program) <= 3

    shrinks_to(simple, cases(apis=("fsdp2",)), lambda case: bool(nodes(case)))
    assert nodes(minimal(cases())) == []
