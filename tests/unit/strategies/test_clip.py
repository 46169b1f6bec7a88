"""Clipping is drawn with all its options, where gradients are reduced and used next."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from fsdpfuzz.case import CaseSpec, Forward, Op, is_sound
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.loop._hypothesis import drive
from fsdpfuzz.strategies import FOCUSES, cases
from fsdpfuzz.strategies.operations import step
from tests.unit.strategies.minimal import minimal
from tests.unit.strategies.sample import sample

SCALING = ("overflow", "unscale", "update_scale")
BESIDE = ("clear_grad", "learning_rate", "state_dict", "set_reshard", "convert", *SCALING)
"""What leaves the other gradients as they are: some set to None, a rate, what is saved, and what
forwards are told; and what a gradient scaler has to do with them."""


def clips(case: CaseSpec) -> list[Clip]:
    return [op for op in case.program if isinstance(op, Clip)]


def evaluates(op: Op) -> bool:
    """Whether it may come before clipping or behind it."""
    return isinstance(op, Forward) and not op.grad


def having() -> list[CaseSpec]:
    return [case for focus in FOCUSES for case in sample(focus).cases if clips(case)]


def test_it_is_drawn_most_where_nothing_else_is_looked_at() -> None:
    share = {
        focus: sum(map(bool, map(clips, sample(focus).cases))) / len(sample(focus).cases)
        for focus in FOCUSES
    }
    assert 0.12 < share["parity"] < 0.3
    assert all(0.0 < share[focus] < share["parity"] for focus in FOCUSES if focus != "parity")


def test_every_option_is_drawn_on_both_apis() -> None:
    norms = Counter((case.api, clip.norm_type) for case in having() for clip in clips(case))
    assert set(norms) == {(api, norm) for api in ("fsdp1", "fsdp2") for norm in (1, 2, "inf")}
    assert min(norms.values()) >= 5
    drawn = [clip for case in having() for clip in clips(case)]
    assert {clip.max_norm for clip in drawn} >= {0.1, 1.0, 10.0}
    assert any(clip.error_if_nonfinite for clip in drawn)
    assert not any(
        c.error_if_nonfinite for case in having() if case.api == "fsdp1" for c in clips(case)
    )


def test_an_evaluation_in_front_of_the_step_comes_before_it_or_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "EVALUATED", 100)
    found: Counter[tuple[str, bool]] = Counter()

    def look(case: CaseSpec) -> None:
        for op, following in pairwise(case.program):
            if isinstance(op, Clip) and evaluates(following):
                found[case.api, True] += 1
            elif isinstance(following, Clip) and evaluates(op):
                found[case.api, False] += 1

    drive(cases(), look, seed=5, max_examples=300)
    assert set(found) == {(api, first) for api in ("fsdp1", "fsdp2") for first in (True, False)}


def test_it_stands_between_the_backward_and_the_step() -> None:
    assert all(map(is_sound, having()))
    for case in having():
        for i, op in enumerate(case.program):
            if isinstance(op, Clip):
                before, after = (
                    [o.kind() for o in ops if not evaluates(o) and o.kind() not in BESIDE]
                    for ops in (case.program[:i], case.program[i + 1 :])
                )
                assert before[-1] in ("backward", "average_unmanaged")
                assert "step" not in after or after[0] == "step"


def test_it_shrinks_to_one_clipping_to_one_and_to_none() -> None:
    found = minimal(cases(), clips)
    assert clips(found) == [Clip(max_norm=1.0)]
    assert not clips(minimal(cases()))
