"""What modules keep for the loss beside their output, and what goes wrong with that alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
)
from fsdpfuzz.case.modules import Repeat, SideOutput
from tests.injected.by_hand import assert_scripted, judged

UNREDUCED = "benchmarks.faults.injections:fsdp2_unit_without_pre_backward_unreduced"
FSDP1 = Fsdp1Plan(
    units=tuple(Fsdp1Unit(path=path, use_orig_params=True) for path in ("0", "1", ""))
)
FSDP2 = Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in ("", "0", "1")))
ON_INPUT = SideOutput(body=Linear(out=3), on="input")


def case(plan: Fsdp1Plan | Fsdp2Plan, node: SideOutput, **changes: object) -> CaseSpec:
    given = {
        "world_size": 2,
        "model": Sequential(children=(Linear(out=3), node, Linear(out=2))),
        "inputs": Dense(width=3, batch=2),
        "plan": plan,
        "program": (*ITERATION, Forward(drop=True), *ITERATION, Forward(grad=False)),
    }
    return CaseSpec(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("recomputed", [None, "1", "1.body"])
@pytest.mark.parametrize("node", [ON_INPUT, SideOutput(body=Linear(out=3))])
@pytest.mark.parametrize("plan", [FSDP1, FSDP2], ids=["fsdp1", "fsdp2"])
def test_the_loss_takes_it_in(
    plan: Fsdp1Plan | Fsdp2Plan, node: SideOutput, recomputed: str | None
) -> None:
    # On the other side of its unit each has a known defect: see `side_loss` of ``case/hazards``.
    around = recomputed == "1" and plan is FSDP2
    told = Checkpoint(path=recomputed or "", side="around" if around else "inside")
    verdict = judged(case(plan, node, checkpoints=(told,) if recomputed else ()))
    assert (verdict.status, [f.key for f in verdict.findings]) == ("passed", [])


def test_each_call_of_a_unit_counts() -> None:
    repeated = Repeat(body=SideOutput(body=Linear(out=3)), times=2)
    model = Sequential(children=(Linear(out=3), repeated))
    assert judged(case(FSDP2, ON_INPUT, model=model)).status == "passed"


def test_the_gradients_of_a_unit_that_puts_out_nothing_with_grad(tmp_path: Path) -> None:
    frozen = ("0.weight", "0.bias", "1.body.weight", "1.body.bias")
    given = case(FSDP2, ON_INPUT, frozen=frozen, program=ITERATION)
    assert judged(given).status == "passed"
    verdict = judged(given, UNREDUCED)
    (finding,) = (f for f in verdict.findings if f.invariant == "grad_parity")
    assert finding.name == "1.layer.weight"
    assert_scripted(given, finding, UNREDUCED, tmp_path)
    # Each unit that puts out what requires grad is reduced as ever.
    assert judged(case(FSDP2, ON_INPUT, program=ITERATION), UNREDUCED).status == "passed"
