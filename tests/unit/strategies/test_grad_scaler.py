"""Gradients are scaled in a few cases, on both APIs; in most of these one overflows."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.operations.overflow import Overflow
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def overflows(case: CaseSpec) -> list[Overflow]:
    return [op for op in case.program if isinstance(op, Overflow)]


def test_they_are_scaled_in_a_few_cases() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if case.grad_scaler is not None]
    assert 0.02 < len(having) / len(found) < 0.07
    assert all(map(is_sound, having))
    drawn = Counter((case.api, bool(overflows(case))) for case in having)
    assert len(drawn) == 4
    assert min(drawn.values()) >= 5
    assert {features_of(case)["unscaled"] for case in having} == {"off", "on"}


def test_it_shrinks_to_an_overflow_in_one_iteration_and_to_none() -> None:
    def simple(case: CaseSpec) -> bool:
        kinds = [op.kind() for op in case.program]
        usual = case.grad_scaler == GradScaler()
        return usual and kinds == ["forward", "backward", "overflow", "step", "update_scale"]

    shrinks_to(simple, cases(apis=("fsdp2",)), overflows)
    assert minimal(cases()).grad_scaler is None
