"""What goes wrong in a recomputation itself shows against a plain model that recomputes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Dropout,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Variant,
)
from tests.injected.by_hand import assert_scripted, judged

PLANS = (Fsdp1Plan(units=(Fsdp1Unit(path=""),)), Fsdp2Plan(units=(Fsdp2Unit(path=""),)))
RECOMPUTED = (Checkpoint(path="", reentrant=True),)
FAULT = "benchmarks.faults.injections:reentrant_forgets_the_generator"


def case(plan: Fsdp1Plan | Fsdp2Plan, *, by_variant: bool) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=8), Dropout(p=0.5), Linear(out=3))),
        inputs=Dense(width=3, requires_grad=True),
        plan=plan,
        program=(Forward(), Backward()),
        checkpoints=() if by_variant else RECOMPUTED,
        twins=(Variant(name="first", checkpoints=RECOMPUTED),) if by_variant else (),
    )


@pytest.mark.parametrize("by_variant", [False, True])
@pytest.mark.parametrize("plan", PLANS, ids=["fsdp1", "fsdp2"])
def test_dropout_that_drops_other_elements(
    plan: Fsdp1Plan | Fsdp2Plan, by_variant: bool, tmp_path: Path
) -> None:
    given = case(plan, by_variant=by_variant)
    found = [f for f in judged(given, FAULT).findings if f.invariant == "grad_parity"]
    assert found, [f.key for f in judged(given, FAULT).findings]
    assert judged(given).status == "passed"
    assert_scripted(given, found[0], FAULT, tmp_path)
