"""What an optimizer's state dict has beside tensors: options of groups, numbers of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Optimizer,
    Plan,
)
from fsdpfuzz.case.operations import OptimState
from tests.injected.by_hand import ONCE, assert_scripted, judged

FLAT = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
ORIGINAL = Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))
FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
LOST = "benchmarks.faults.injections:saved_options_not_loaded"
SAVED = "tests.injected.optim:saves_another_option"
GOES_ON = "tests.injected.optim:loads_one_step_more"
FAULTS = [
    (injection, plan, name)
    for plan in (FLAT, ORIGINAL, FSDP2)
    for injection, name in (
        (LOST, "optim_loaded[group 0].betas"),
        (SAVED, "optim_options[weight].eps"),
        (GOES_ON, "optim_loaded[weight].step"),
    )
    # The number of steps of a flat parameter is nobody's own.
    if (injection, plan) != (GOES_ON, FLAT)
]


def case(plan: Plan, *program: Op) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Linear(out=3, bias=False),
        inputs=Dense(width=4),
        optimizer=Optimizer(name="adam", lr=0.01),
        plan=plan,
        program=program,
    )


@pytest.mark.parametrize(("injection", "plan", "name"), FAULTS)
def test_it_shows_though_nothing_comes_after(injection: str, plan: Plan, name: str) -> None:
    given = case(plan, *ONCE, OptimState())
    (finding,) = judged(given, injection).findings
    assert finding.name == name
    # No ratio of numbers of ranks, which would say that something is averaged or summed.
    assert injection != LOST or finding.detail == "other"
    assert judged(given).status == "passed"


@pytest.mark.parametrize("injection", [LOST, SAVED, GOES_ON])
def test_a_script_shows_it(injection: str, tmp_path: Path) -> None:
    given = case(FSDP2, *ONCE, OptimState())
    (finding,) = judged(given, injection).findings
    assert_scripted(given, finding, injection, tmp_path)


def test_a_new_optimizer_has_none_of_it() -> None:
    """What comes after it is wrong, too, where it goes on with the options that it has."""
    given = case(FSDP2, *ONCE, OptimState(fresh=True), *ONCE)
    assert judged(given, LOST).status == "finding"
    assert judged(given).status == "passed"
