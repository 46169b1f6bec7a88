"""Experts that other ranks give other numbers of rows, and what goes wrong with them alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Checkpoint,
    CheckpointKind,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Sequential,
    StateDict,
)
from fsdpfuzz.case.modules import Experts
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from tests.injected.by_hand import ONCE, assert_scripted, judged

INNER = ("0.experts.0", "0.experts.1")
PATHS = (*INNER, "0.router", "")
PLANS: dict[str, Plan] = {
    "flat": Fsdp1Plan(units=tuple(Fsdp1Unit(path=path) for path in PATHS)),
    "original": Fsdp1Plan(
        units=tuple(Fsdp1Unit(path=path, use_orig_params=True) for path in PATHS)
    ),
    "in one": Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
    "fsdp2": Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in PATHS)),
    "fsdp2 grouped": Fsdp2Plan(
        units=(Fsdp2Unit(path=""), Fsdp2Unit(path=INNER[0], grouped=(INNER[1],)))
    ),
    "fsdp2 in one": Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
}
FAULTS = "benchmarks.faults.injections:"


def case(plan: Plan, *, top: int = 1, **changes: object) -> CaseSpec:
    experts = Experts(children=(Linear(out=4), Linear(out=4)), top=top)
    values: dict[str, object] = {
        "world_size": 2,
        "model": Sequential(children=(experts, Linear(out=2))),
        # The first expert has both rows on one rank, and the second on the other.
        "inputs": Dense(width=4, requires_grad=True),
        "plan": plan,
        "program": (*ONCE, *ONCE, StateDict(form="full")),
    }
    return CaseSpec(**values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", ["function", "wrapper"])
@pytest.mark.parametrize("top", [1, 2])
def test_they_train_are_saved_and_recomputed(
    pool: Pool, plan: str, kind: CheckpointKind, top: int
) -> None:
    given = case(PLANS[plan], top=top, checkpoints=(Checkpoint(path="0", kind=kind),))
    verdict = judge(given, pool.run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_a_rank_without_rows_has_its_part_of_the_gradient(api: str, tmp_path: Path) -> None:
    fault = f"{FAULTS}{api}_idle_rank_keeps_nothing"
    given = case(PLANS["flat" if api == "fsdp1" else "fsdp2"])
    found = judged(given, fault).findings
    wrong = [f for f in found if f.invariant == "grad_parity" and f.name.startswith("0.experts")]
    assert wrong
    assert_scripted(given, wrong[0], fault, tmp_path)


def test_a_unit_without_rows_is_reduced_in_its_turn(tmp_path: Path) -> None:
    fault = f"{FAULTS}fsdp2_unit_without_rows_reduced_late"
    # Without one for the router: what is gathered for it would come between, and ranks hang.
    plan = Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in (*INNER, "")))
    given = case(plan)
    wrong = [f for f in judged(given, fault).findings if f.invariant == "grad_parity"]
    assert wrong
    assert_scripted(given, wrong[0], fault, tmp_path)
    # With rows for each expert on each rank nobody would see it.
    assert (
        judged(case(plan, inputs=Dense(width=4, batch=4, requires_grad=True)), fault).status
        == "passed"
    )
