"""Cases and entries to keep, read and spoil."""

from __future__ import annotations

from typing import Any

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Norm,
    Optimizer,
    Sequential,
    Step,
    Tie,
)
from fsdpfuzz.corpus import Entry, Found
from fsdpfuzz.verdict import Finding

PROGRAM = (Forward(), Backward(), Step())
KEY = "grad_parity/mismatch/fsdp1:grad"


def small(out: int = 1, *, world_size: int = 2) -> CaseSpec:
    return CaseSpec(
        world_size=world_size,
        model=Linear(out=out),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=PROGRAM,
    )


def large() -> CaseSpec:
    return CaseSpec(
        world_size=2,
        seed=7,
        model=Sequential(
            children=(Linear(out=5), Norm(), Sequential(children=(Linear(out=5),)), Linear(out=5))
        ),
        inputs=Dense(width=5, requires_grad=True),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path="", sharding="SHARD_GRAD_OP"), Fsdp1Unit(path="2"))),
        ties=(Tie(source="0.weight", target="3.weight"),),
        frozen=("2.0.bias",),
        checkpoints=(Checkpoint(path="2"),),
        optimizer=Optimizer(name="adam"),
        program=PROGRAM * 3,
    )


def found(key: str = KEY, **changes: Any) -> Found:
    given: dict[str, Any] = {
        "key": key,
        "message": "observed 2.0, but should be 1.0 [grad(0.weight)]",
        "property": "parity",
        "torch": "2.13.0",
        "backend": "gloo",
        "world_size": 2,
        "date": "2026-11-20",
        "seed": 5,
    }
    return Found(**{**given, **changes})


FINDING = Finding(
    invariant="grad_parity",
    symptom="mismatch",
    api="fsdp1",
    detail="times-ranks",
    op=1,
    operation="backward",
    quantity="grad",
    name="0.weight",
    unit="",
    ranks=(0, 1),
    world_size=2,
    observed="2.0",
    expected="1.0",
    allowed=1e-6,
    baseline=0.0,
)

ENTRIES = (
    Entry(case=small()),
    Entry(case=large(), found=found()),
    Entry(case=large(), found=found(FINDING.key, message=FINDING.message, finding=FINDING)),
    Entry(case=small(3), origin="test_fsdp_core.py: test_parity[no_shard]"),
)
