"""What FSDP ignores is trained as it documents: by each rank, or averaged by the user.

Each fault is injected where FSDP itself would have it, and shown by a script of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Optimizer,
    Plan,
    Rebuild,
    Sequential,
    StateDict,
    Step,
    ZeroGrad,
)
from fsdpfuzz.case.operations import AverageUnmanaged
from fsdpfuzz.case.operations.clip import Clip
from fsdpfuzz.case.operations.optim_state import OptimState
from tests.injected.by_hand import ONCE, assert_scripted, judged

AVERAGED: tuple[Op, ...] = (Forward(), Backward(), AverageUnmanaged(), Step(), ZeroGrad())
MODULE1 = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored=("1",)),))
PARAMETER1 = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored_parameters=("1.weight",)),))
NESTED1 = Fsdp1Plan(
    units=(Fsdp1Unit(path=""), Fsdp1Unit(path="1", ignored_parameters=("1.weight",)))
)
ORIGINAL1 = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored=("1",), use_orig_params=True),))
MODULE2 = Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=("1",)),))
PARAMETER2 = Fsdp2Plan(units=(Fsdp2Unit(path="", ignored_parameters=("0.bias", "1.weight")),))
PLANS: dict[str, Plan] = {
    "module, fsdp1": MODULE1,
    "parameter, fsdp1": PARAMETER1,
    "of an inner unit": NESTED1,
    "original parameters": ORIGINAL1,
    "module, fsdp2": MODULE2,
    "parameters, fsdp2": PARAMETER2,
}


def case(plan: Plan, *program: Op) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), Linear(out=3))),
        inputs=Dense(width=3),
        plan=plan,
        program=program,
        # Parameters that FSDP2 ignores stay beside DTensors, which no list of torch's may hold.
        optimizer=Optimizer(foreach=False),
    )


@pytest.mark.parametrize("name", PLANS)
def test_each_rank_trains_it_by_itself(name: str) -> None:
    state = StateDict(form="sharded")
    assert judged(case(PLANS[name], *ONCE, state, *ONCE, StateDict(), *ONCE)).status == "passed"


@pytest.mark.parametrize("name", PLANS)
def test_averaged_it_goes_with_all_that_needs_one_model(name: str) -> None:
    plan = PLANS[name]
    program = (*AVERAGED, OptimState(), Rebuild(plan=plan), *AVERAGED, StateDict(rank0_only=True))
    assert judged(case(plan, *program, *AVERAGED)).status == "passed"


CLIPPED: tuple[Op, ...] = (Forward(), Backward(), AverageUnmanaged(), Clip(max_norm=0.1), Step())
FAULTS: dict[str, tuple[CaseSpec, str]] = {
    "ignored_modules_sharded": (case(MODULE1, *ONCE), "grad_parity/mismatch/fsdp1"),
    "nested_ignored_parameters_sharded": (case(NESTED1, *ONCE), "grad_parity/mismatch/fsdp1"),
    "fsdp2_ignored_parameters_sharded": (case(PARAMETER2, *ONCE), "grad_parity/mismatch/fsdp2"),
    "fsdp1_norm_without_ignored": (case(MODULE1, *CLIPPED), "clip_norm/mismatch/fsdp1"),
    "optimizer_state_of_unmanaged_lost": (
        case(ORIGINAL1, *AVERAGED, OptimState()),
        "optim_state/mismatch/fsdp1",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_and_so_does_its_script(fault: str, tmp_path: Path) -> None:
    given, key = FAULTS[fault]
    injection = f"benchmarks.faults.injections:{fault}"
    found = [f for f in judged(given, injection).findings if f.key.startswith(key)]
    assert found, [f.key for f in judged(given, injection).findings]
    assert judged(given).status == "passed"
    assert_scripted(given, found[0], injection, tmp_path)


def test_what_is_sharded_all_the_same_fails_alike_in_its_script(tmp_path: Path) -> None:
    given = case(PARAMETER2, Forward(), Backward(), AverageUnmanaged())
    injection = "benchmarks.faults.injections:fsdp2_ignored_parameters_sharded"
    found = [f for f in judged(given, injection).findings if f.invariant == "no_crash"]
    assert found, [f.key for f in judged(given, injection).findings]
    assert_scripted(given, found[0], injection, tmp_path)
