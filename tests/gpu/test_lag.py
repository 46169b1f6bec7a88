"""Where computation lags on a GPU, whoever does not wait for it is found."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Sequential,
)
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool

FSDP1 = Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0")))
FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0")))


def case(plan: Plan) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=8), Linear(out=8))),
        inputs=Dense(width=8),
        plan=plan,
        program=ITERATION * 3,
        lag=True,
    )


def found(plan: Plan, fault: str | None) -> set[str]:
    injection = fault and f"benchmarks.faults.injections:{fault}"
    with Pool(2, "nccl", injection=injection) as pool:
        verdict = judge(case(plan), pool.run(case(plan)))
    return {finding.invariant for finding in verdict.findings}


@pytest.mark.gpu(2)
@pytest.mark.parametrize("plan", [FSDP1, FSDP2], ids=["fsdp1", "fsdp2"])
def test_fsdp_waits(plan: Plan) -> None:
    assert found(plan, None) == set()


@pytest.mark.gpu(2)
@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        (FSDP1, "fsdp1_reduces_before_backward_is_over"),
        (FSDP2, "fsdp2_reduces_before_backward_is_over"),
    ],
)
def test_who_does_not_wait_is_found(plan: Plan, fault: str) -> None:
    assert "grad_parity" in found(plan, fault)
