"""Self-attention by PyTorch's own module as a unit, and what goes wrong with it alone."""

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
    Mode,
    Plan,
    Sequential,
    StateDict,
    Step,
    features,
)
from fsdpfuzz.case.modules import Attention
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from tests.injected.hunting import LONGER, assert_shown_by_its_script, case_of, found_by, hunt

AT = "1.inner"
PLANS: dict[str, Plan] = {
    "flat": Fsdp1Plan(units=(Fsdp1Unit(path=AT), Fsdp1Unit(path=""))),
    "classes": Fsdp1Plan(
        units=(Fsdp1Unit(path="", use_orig_params=True),),
        wrap="module_classes",
        classes=("multihead_attention",),
    ),
    "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path=AT), Fsdp2Unit(path=""))),
}


def case(plan: Plan, node: Attention, *checkpoints: Checkpoint) -> CaseSpec:
    once = (Forward(), Backward(), Step())
    evaluated = (Mode(train=False), Forward(grad=False), Mode(train=True))
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), node, Linear(out=2))),
        inputs=Dense(width=3, batch=2, length=3, requires_grad=True),
        plan=plan,
        checkpoints=checkpoints,
        program=(*once, *evaluated, *once, StateDict(form="full")),
    )


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_it_trains_is_saved_and_recomputed(pool: Pool, plan: str, mask: Any) -> None:
    node = Attention(heads=2, mask=mask, weights=mask == "none", batch_first=mask != "causal")
    for placed in ((), (Checkpoint(path=AT),), (Checkpoint(path=AT, reentrant=True),)):
        given = case(PLANS[plan], node, *placed)
        verdict = judge(given, pool.run(given))
        assert (verdict.status, [f.key for f in verdict.findings]) == ("passed", [])


def test_hooks_part_its_arguments_in_forward_and_not_in_a_recomputation(pool: Pool) -> None:
    given = case(PLANS["fsdp2"], Attention(), Checkpoint(path=AT, side="around"))
    keys = [found.key for found in judge(given, pool.run(given)).findings]
    assert len(keys) == 1
    assert keys[0].startswith("no_crash/crash/fsdp2:CheckpointError")


def test_a_unit_that_gives_its_first_input_alone_a_gradient(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_gradient_of_first_input"
    key = "grad_parity/mismatch/fsdp2"
    found = found_by(hunt(injection, tmp_path, number=300, until=(key,)), key)
    told = features(case_of(found))
    # What is given one tensor several times: as keys and values, or to be added.
    assert told["attention"] != "no" or told["keywords"] == "added"
    assert_shown_by_its_script(found, lines=LONGER + 40)
