"""Weight decay: what moves weights by itself shows though all gradients are right."""

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

PLANS: dict[str, Plan] = {
    "flat": Fsdp1Plan(units=(Fsdp1Unit(path=""),)),
    "use_orig_params": Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
    "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
}
STEPS = "benchmarks.faults.injections:saving_takes_a_step"
FORGETS = "tests.injected.optim:forgets_weight_decay"


def case(plan: Plan, *program: Op, decay: float = 0.1) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Linear(out=3),
        inputs=Dense(width=4),
        optimizer=Optimizer(weight_decay=decay),
        plan=plan,
        program=program,
    )


@pytest.mark.parametrize("plan", PLANS)
def test_an_optimizer_that_forgets_it_shows(plan: str) -> None:
    given = case(PLANS[plan], *ONCE)
    (finding,) = judged(given, FORGETS).findings
    assert finding.invariant == "param_parity"
    assert judged(given).status == "passed"
    assert judged(case(PLANS[plan], *ONCE, decay=0.0), FORGETS).status == "passed"


def test_a_step_taken_by_saving_shows(tmp_path: Path) -> None:
    """Of an optimizer without state ``torch.distributed.checkpoint`` makes one by a step."""
    given = case(PLANS["fsdp2"], *ONCE, OptimState(fresh=True), *ONCE)
    found = judged(given, STEPS).findings
    assert [finding.invariant for finding in found] == ["output_parity"]
    assert judged(given).status == "passed"
    assert_scripted(given, found[0], STEPS, tmp_path)
