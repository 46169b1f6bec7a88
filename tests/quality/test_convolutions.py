"""What FSDP does wrong with convolutions, batch norms and their running statistics is found."""

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
    Precision,
    Sequential,
    StateDict,
    Step,
    features,
)
from fsdpfuzz.case.modules import ConvNorm
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

FIRST = Fsdp1Plan(units=(Fsdp1Unit(path="1"), Fsdp1Unit(path="")))
SECOND = Fsdp2Plan(units=(Fsdp2Unit(path="1.bn"), Fsdp2Unit(path="")))
PLANS: dict[str, Plan] = {"fsdp1": FIRST, "fsdp2": SECOND}
LOW = Precision(param="bfloat16", buffer="bfloat16")
POLICY = Fsdp1Plan(
    units=(Fsdp1Unit(path="", precision=LOW),), wrap="module_classes", classes=("linear",)
)
BESIDE = Fsdp2Plan(
    units=(
        Fsdp2Unit(path="0", precision=Precision(param="bfloat16", output="float32")),
        Fsdp2Unit(path=""),
    )
)
TRAINED = (Forward(), Backward(), Step())


def case(plan: Plan, *more: Any, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Sequential(children=(Linear(out=5), ConvNorm(channels=3), Linear(out=2))),
        "inputs": Dense(width=4, batch=3),
        "plan": plan,
        "program": (*TRAINED, *TRAINED, *more),
    }
    return CaseSpec(**values | changes)


def keys(pool: Pool, given: CaseSpec) -> list[str]:
    found = judge(given, pool.run(given))
    assert found.status in ("passed", "finding")
    return [finding.key for finding in found.findings]


@pytest.mark.parametrize("api", PLANS)
@pytest.mark.parametrize("recomputed", [False, True])
def test_each_rank_keeps_its_own_statistics(pool: Pool, api: str, recomputed: bool) -> None:
    more = [StateDict(form="full")]
    if not recomputed:
        more += [Mode(train=False), Forward(grad=False)]  # type: ignore[list-item]
    placed = (Checkpoint(path="1"),) if recomputed else ()
    assert keys(pool, case(PLANS[api], *more, checkpoints=placed)) == []


@pytest.mark.parametrize("plan", [POLICY, BESIDE], ids=["policy", "beside"])
def test_low_precision_leaves_batch_norms_alone(pool: Pool, plan: Plan) -> None:
    assert keys(pool, case(plan, Mode(train=False), Forward(grad=False))) == []


@pytest.mark.parametrize("api", PLANS)
def test_statistics_that_are_lost_are_seen_wherever_they_count(api: str) -> None:
    with Pool(2, "gloo", injection="tests.quality.injected_buffers:statistics_lost") as pool:
        saved = case(PLANS[api], StateDict(form="full"))
        assert set(keys(pool, saved)) >= {
            f"state_dict_values/mismatch/{api}",
            f"buffer_parity/mismatch/{api}",
        }
        evaluated = case(PLANS[api], Mode(train=False), Forward(grad=False))
        assert f"output_parity/mismatch/{api}" in keys(pool, evaluated)


def test_batches_counted_twice_are_seen() -> None:
    with Pool(2, "gloo", injection="tests.quality.injected_buffers:counts_twice") as pool:
        assert keys(pool, case(SECOND)) == ["buffer_parity/mismatch/fsdp2"]


def test_gradients_of_three_dimensions_that_are_transposed(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp2_convolution_gradients_transposed"
    key = "grad_parity/mismatch/fsdp2"
    found = found_by(hunt(injection, tmp_path, number=300, until=(key,)), key)
    case = case_of(found)
    assert linears(case) <= 1
    assert features(case)["norm"] == "batch"
    assert_shown_by_its_script(found, lines=LONGER)


def test_batch_norms_that_mixed_precision_reaches(tmp_path: Path) -> None:
    injection = "benchmarks.faults.injections:fsdp1_batch_norm_in_low_precision"
    key = "no_crash/crash/fsdp1"
    summary = hunt(
        injection,
        tmp_path,
        property_name="fine_tune",
        number=300,
        apis=("fsdp1",),
        until=(key,),
        seed=3,
    )
    found = found_by(summary, key)
    case = case_of(found)
    assert linears(case) <= 1
    assert features(case)["norm"] == "batch"
    assert features(case)["precision"] == "on"
    assert_shown_by_its_script(found, lines=LONGER)
