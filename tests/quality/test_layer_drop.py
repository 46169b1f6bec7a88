"""Layers that are left out in turn, and what goes wrong with them alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    CheckpointKind,
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
    anatomy,
    unit_features,
)
from fsdpfuzz.case.modules import Buffered, LayerDrop
from fsdpfuzz.case.operations import ClearGrad, ZeroGrad
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from tests.fitting import skip_unless_it_fits
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

PATHS = ("0.layers.0", "0.layers.1", "")
PLANS: dict[str, Plan] = {
    "flat": Fsdp1Plan(units=tuple(Fsdp1Unit(path=path) for path in PATHS)),
    "original": Fsdp1Plan(
        units=tuple(Fsdp1Unit(path=path, use_orig_params=True) for path in PATHS)
    ),
    "in one": Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
    "fsdp2": Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in PATHS)),
    "fsdp2 in one": Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
}
TRAIN = (Forward(), Backward(), Step(), ZeroGrad())


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", ["function", "wrapper"])
def test_they_train_are_saved_and_recomputed(pool: Pool, plan: str, kind: CheckpointKind) -> None:
    given = CaseSpec(
        world_size=2,
        model=Sequential(
            children=(LayerDrop(children=(Linear(out=4), Linear(out=4))), Linear(out=2))
        ),
        inputs=Dense(width=4, batch=3),
        plan=PLANS[plan],
        checkpoints=(Checkpoint(path="0", kind=kind),),
        program=(*TRAIN * 4, StateDict(form="full")),
    )
    verdict = judge(given, pool.run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


@pytest.mark.parametrize("cleared", [("weight",), ("bias",), ("weight", "bias")])
def test_what_was_set_to_none_stays_so_where_its_unit_gets_no_gradient(
    pool: Pool, cleared: tuple[str, ...]
) -> None:
    # The momentum of what has a gradient, zeros included, moves it on; the bias lies on two ranks.
    inner = LayerDrop(children=(Linear(out=2), Linear(out=2, bias=False)))
    names = tuple(f"layers.0.layers.0.{name}" for name in cleared)
    once = (Forward(), Backward())
    given = CaseSpec(
        world_size=2,
        model=LayerDrop(children=(inner, Buffered())),
        inputs=Dense(width=2, batch=1, requires_grad=True),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
        program=(*once * 3, Step(), *once, ClearGrad(parameters=names), *once, Step()),
    )
    verdict = judge(given, pool.run(given))
    assert (verdict.status, [finding.key for finding in verdict.findings]) == ("passed", [])


def test_a_unit_that_is_left_out_reduces_zeros(tmp_path: Path) -> None:
    skip_unless_it_fits("fsdp2_left_out_unit_reduces_zeros")
    injection = "benchmarks.faults.injections:fsdp2_left_out_unit_reduces_zeros"
    key = "param_parity/mismatch/fsdp2"
    found = found_by(hunt(injection, tmp_path, number=300, until=(key,)), key)
    a = anatomy(case_of(found))
    assert linears(a.case) <= 2
    # By its number or by a flip.
    assert any(unit_features(a, path)["left_out"] == "on" for path in a.units)
    # Two iterations that differ, with a step and momentum.
    assert_shown_by_its_script(found, lines=LONGER + 40)
