"""Frozen layers are stored in bfloat16 in some draws, in units of their own and beside others."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Linear, Sequential
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, large


def how(case: CaseSpec) -> str:
    return features_of(case).get("stored_low", "no")


def test_they_lie_alone_and_beside_others() -> None:
    found = Counter((case.api, how(case)) for case in large("fine_tune"))
    assert found["fsdp2", "mixed"] >= 20, found
    assert min(found["fsdp1", "alone"], found["fsdp2", "alone"]) >= 10, found
    # FSDP1 refuses them.
    assert 0 < found["fsdp1", "mixed"] < found["fsdp1", "alone"], found


def test_they_shrink_to_one_layer_and_to_none() -> None:
    strategy = cases(focus="fine_tune", apis=("fsdp2",))

    def simple(case: CaseSpec) -> bool:
        # Something has to be trained, if it is but the input.
        model = case.model
        nodes = model.children if isinstance(model, Sequential) else (model,)
        few = len(nodes) <= 2 and all(isinstance(node, Linear) for node in nodes)
        return few and len(case.stored_low) == 1 and len(case.program) <= 3

    shrinks_to(simple, strategy, lambda case: bool(case.stored_low), start=2)
    assert minimal(strategy).stored_low == ()
