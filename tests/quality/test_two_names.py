"""A module that the model holds under two names, and what goes wrong with the second one."""

from __future__ import annotations

from pathlib import Path

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
    StateDict,
)
from fsdpfuzz.case.modules import TwoNames
from fsdpfuzz.case.operations.optim_state import OptimState
from tests.injected.by_hand import judged
from tests.injected.hunting import assert_shown_by_its_script, case_of, found_by, hunt

FAULT = "benchmarks.faults.injections:fsdp1_modules_by_first_name_alone"
PLANS: dict[str, Plan] = {
    "flat": Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="1"))),
    "originals": Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
    "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path="1"), Fsdp2Unit(path=""))),
}


def case(plan: Plan, *after: StateDict | OptimState) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), TwoNames(), Linear(out=2))),
        inputs=Dense(width=3, batch=3),
        plan=plan,
        program=(*ITERATION, *after, *ITERATION),
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_it_is_trained_and_saved(plan: Plan) -> None:
    ops = (StateDict(form="sharded"), OptimState())
    assert judged(case(plan, *ops)).status == "passed"


@pytest.mark.parametrize("name", ["flat", "originals"])
@pytest.mark.parametrize("saved", [StateDict(), StateDict(form="sharded")], ids=lambda op: op.form)
def test_fsdp1_saves_it_by_both_names(name: str, saved: StateDict) -> None:
    given = case(PLANS[name], saved)
    assert judged(given).status == "passed"
    found = judged(given, FAULT).findings[0]
    assert found.key.startswith("no_rank_death/rank_death/fsdp1:state_dict")


def test_the_second_name_is_forgotten(tmp_path: Path) -> None:
    key = "no_rank_death/rank_death/fsdp1"
    found = found_by(hunt(FAULT, tmp_path, number=400, apis=("fsdp1",), until=(key,)), key)
    assert case_of(found).model == TwoNames(bias=False)
    assert_shown_by_its_script(found)
