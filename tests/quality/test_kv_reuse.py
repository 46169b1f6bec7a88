"""Layers that reuse keys and values train on real ranks, each of their modules a unit."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    Plan,
    Sequential,
    StateDict,
    Step,
)
from fsdpfuzz.case.modules import KvReuse
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool

PATHS = ("1.source", "1.layers.0", "1.layers.1", "")
PLANS: dict[str, Plan] = {
    "fsdp1": Fsdp1Plan(units=tuple(Fsdp1Unit(path=path) for path in PATHS)),
    "fsdp2": Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in PATHS)),
}
ONCE = (Forward(), Backward(), Step())


def case(plan: Plan, *checkpoints: Checkpoint) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), KvReuse(heads=4, kv_heads=2))),
        inputs=Dense(width=3, batch=2, length=3, requires_grad=True),
        plan=plan,
        checkpoints=checkpoints,
        program=(*ONCE, *ONCE, StateDict(form="full")),
    )


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_they_train_are_saved_and_recomputed(pool: Pool, plan: str, reentrant: bool) -> None:
    for paths in ((), ("1.source",), ("1.source", "1.layers.1"), ("1",)):
        placed = (Checkpoint(path=path, reentrant=reentrant, side="around") for path in paths)
        given = case(PLANS[plan], *placed)
        verdict = judge(given, pool.run(given))
        assert (verdict.status, [f.key for f in verdict.findings]) == ("passed", [])


def test_keys_that_get_no_gradient_are_found(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_gradient_of_first_input"
    with Pool(2, "gloo", injection=injection, workdir=tmp_path) as pool:
        given = case(PLANS["fsdp2"])
        found = judge(given, pool.run(given)).findings
    names = {f.name for f in found if f.invariant == "grad_parity"}
    assert names & {"1.source.keys", "1.source.values"}, found
