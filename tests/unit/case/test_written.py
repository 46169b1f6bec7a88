"""A training program in plain words."""

from __future__ import annotations

import re

import pytest

from fsdpfuzz.case import (
    WRITTEN,
    Backward,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Mode,
    Rebuild,
    StateDict,
    Step,
    ZeroGrad,
    written,
)
from fsdpfuzz.case.operations import Clip, Convert
from fsdpfuzz.errors import UsageError

PLAN = Fsdp2Plan(units=(Fsdp2Unit(path=""),))


def test_each_word_has_its_operations() -> None:
    words = ["accumulate", "forward_backward", "clip", "step", "zero_grad", "eval"]
    assert written([*words, "state_dict", "reload"], PLAN) == (
        Forward(sync=False),
        Backward(),
        Forward(),
        Backward(),
        Clip(max_norm=1.0),
        Step(),
        ZeroGrad(),
        Mode(train=False),
        Forward(grad=False),
        Mode(train=True),
        StateDict(),
        Rebuild(plan=PLAN),
    )
    assert written(["forward_backward", "to_cpu"], PLAN)[-1] == Convert(what="device")
    assert set(WRITTEN) == {*words, "state_dict", "reload", "to_cpu"}


def test_only_fsdp2_goes_elsewhere() -> None:
    said = "'to_cpu' at place 1: FSDP1 promises nothing of model.to(): leave it out"
    with pytest.raises(UsageError, match=re.escape(said)):
        written(["forward_backward", "to_cpu"], Fsdp1Plan(units=(Fsdp1Unit(path=""),)))


def test_clipping_is_their_own_where_they_have_one_unless_a_norm_is_given() -> None:
    found = written(["forward_backward", "clip", "clip 0.5"], PLAN, clips=True)
    assert found[2:] == (Clip(max_norm=1.0, own=True), Clip(max_norm=0.5))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["forward"], "'forward' at place 0 is none of the words forward_backward, accumulate"),
        (["forward_backward", "clip -1"], "'clip -1' at place 1: give a norm above 0"),
        (["accumulate", "step"], "'step' at place 1 comes after 'accumulate'"),
        (["accumulate", "reload"], "'reload' at place 1 comes after 'accumulate'"),
        (["forward_backward", "accumulate"], "it ends with 'accumulate'"),
        (["eval"], "it trains nothing"),
    ],
)
def test_what_is_no_program(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        written(words, PLAN)
