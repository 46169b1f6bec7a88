"""Clipping is drawn with all its options, where gradients are reduced and used next."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Forward, is_sound
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal
from tests.unit.strategies.sample import sample

SCALING = ("overflow", "unscale", "update_scale")
BESIDE = ("clear_grad", "learning_rate", "state_dict", "set_reshard", *SCALING)
"""What leaves the other gradients as they are: some set to None, a rate, what is saved, and what
forwards are told; and what a gradient scaler has to do with them."""


def clips(case: CaseSpec) -> list[Clip]:
    return [op for op in case.program if isinstance(op, Clip)]


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


def test_it_stands_between_the_backward_and_the_step() -> None:
    assert all(map(is_sound, having()))
    for case in having():
        for i, op in enumerate(case.program):
            if isinstance(op, Clip):
                before = [o.kind() for o in case.program[:i] if o.kind() not in BESIDE]
                later = [o for o in case.program[i + 1 :] if o.kind() not in BESIDE]
                # An evaluation may come first.
                after = [o.kind() for o in later if not isinstance(o, Forward) or o.grad]
                assert before[-1] in ("backward", "average_unmanaged")
                assert "step" not in after or after[0] == "step"


def test_it_shrinks_to_one_clipping_to_one_and_to_none() -> None:
    found = minimal(cases(), clips)
    assert clips(found) == [Clip(max_norm=1.0)]
    assert not clips(minimal(cases()))
