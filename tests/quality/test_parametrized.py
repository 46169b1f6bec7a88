"""Layers whose weight is computed from other parameters, and what goes wrong with them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    features,
)
from fsdpfuzz.case.modules import Parametrized
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt, linears

PLANS: dict[str, Plan] = {
    "flat": Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path=""))),
    "original": Fsdp1Plan(
        units=(Fsdp1Unit(path="0", use_orig_params=True), Fsdp1Unit(path="", use_orig_params=True))
    ),
    "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
}
HELD = "0.parametrizations.weight.original"


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("form", ["weight_norm", "weight_norm_dim1", "orthogonal"])
def test_they_train_are_saved_and_recomputed(pool: Pool, plan: str, form: Any) -> None:
    frozen = () if plan == "flat" or form == "orthogonal" else (f"{HELD}1",)
    given = CaseSpec(
        world_size=2,
        model=Sequential(children=(Parametrized(out=5, form=form), Linear(out=2))),
        inputs=Dense(width=4, batch=3),
        plan=PLANS[plan],
        frozen=frozen,
        checkpoints=(Checkpoint(path="0"),),
        program=(Forward(), Backward(), Step(), Forward(), Backward(), StateDict(form="full")),
    )
    verdict = judge(given, pool.run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


def test_a_policy_that_passes_over_subclasses(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp1_policy_passes_over_subclasses"
    key = "wrapped_as_planned/mismatch/fsdp1"
    found = found_by(hunt(injection, tmp_path, number=300, apis=("fsdp1",), until=(key,)), key)
    case = case_of(found)
    assert linears(case) <= 1
    assert features(case)["parametrized"] != "no"
    assert_shown_by_its_script(found)
