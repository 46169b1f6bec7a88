"""Faults that a second backward alone meets are found, and reduced to it."""

from __future__ import annotations

from pathlib import Path

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    features,
)
from tests.injected.by_hand import assert_scripted, judged
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears


def test_a_second_backward_that_fails(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_second_backward_fails"
    found = found_by(hunt(injection, tmp_path, number=200, until=("no_crash",)), "no_crash")
    case = case_of(found)
    assert linears(case) <= 1
    assert features(case)["second_backward"] == "graph"
    assert_shown_by_its_script(found)


def test_the_gradients_of_all_losses_but_the_last_are_lost(tmp_path: Path) -> None:
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), Linear(out=3))),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0"))),
        program=(Forward(), Forward(), Backward(each=True)),
    )
    assert judged(case).status == "passed"
    injection = "benchmarks.faults.injections:fsdp2_second_backward_overwrites"
    found = judged(case, injection).findings[0]
    assert (found.invariant, found.operation) == ("grad_parity", "backward")
    assert_scripted(case, found, injection, tmp_path)
