"""A scaler that each rank asks by itself is found and reduced; right ones pass."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import Backward, CaseSpec, Forward, Fsdp1Plan, Op, Rebuild, Step, ZeroGrad, chain
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.case.operations.overflow import Overflow
from fsdpfuzz.case.operations.unscale import Unscale
from fsdpfuzz.case.operations.update_scale import UpdateScale
from fsdpfuzz.loop import Api
from tests.fitting import skip_unless_it_fits
from tests.injected.by_hand import judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

FAULTS = "benchmarks.faults.injections:"
GRADED = (Forward(), Backward())
STEPPED = (Step(), UpdateScale(), ZeroGrad())
OVERFLOWS = (*GRADED, Overflow(parameter="0.weight"), *STEPPED)
UNSCALED = (*GRADED, Overflow(parameter="0.weight"), Unscale(), Clip(max_norm=1.0), *STEPPED)


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_an_overflow_that_one_rank_sees_alone(api: Api, tmp_path: Path) -> None:
    fault = f"{api}_overflow_of_one_rank"
    skip_unless_it_fits(fault)
    summary = hunt(
        FAULTS + fault, tmp_path, apis=(api,), number=600, until=("param_parity",), seed=4
    )
    found = found_by(summary, "param_parity")
    case = case_of(found)
    assert linears(case) <= 2
    assert any(isinstance(op, Overflow) for op in case.program)
    assert_shown_by_its_script(found, lines=LONGER)


def scaled(api: str, program: tuple[Op, ...], ranks: int = 2, **scaler: float) -> CaseSpec:
    case = chain(api, (3, 5, 4, 2), (0, 1, 2), ranks, program)
    return msgspec.structs.replace(case, grad_scaler=GradScaler(**scaler))  # type: ignore[arg-type]


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("overflows", [OVERFLOWS, UNSCALED])
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_skip_a_step_or_none(api: str, overflows: tuple[Op, ...], ranks: int) -> None:
    fault = f"{api}_overflow_of_one_rank"
    skip_unless_it_fits(fault)
    program = (*GRADED, *STEPPED, *overflows, *GRADED, *STEPPED)
    case = scaled(api, program, ranks, growth_interval=1)
    assert judged(case).status == "passed"
    found = {finding.invariant for finding in judged(case, FAULTS + fault).findings}
    assert found & {"param_parity", "grad_scale"}


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_a_scaler_goes_on_from_its_state(api: str) -> None:
    plan = chain(api, (3, 5, 4, 2), (0, 1, 2), 2, ()).plan
    program = (*GRADED, *STEPPED, Rebuild(plan=plan), *GRADED, *STEPPED)
    case = scaled(api, program, growth_interval=2)
    assert judged(case).status == "passed"
    verdict = judged(case, FAULTS + "scaler_loads_no_growth")
    assert {finding.invariant for finding in verdict.findings} == {"grad_scale"}


def test_a_scale_that_grows_early() -> None:
    case = scaled("fsdp1", (*GRADED, *STEPPED), growth_interval=3)
    assert isinstance(case.plan, Fsdp1Plan)
    assert judged(case).status == "passed"
    verdict = judged(case, FAULTS + "fsdp1_scale_grows_early")
    assert {finding.invariant for finding in verdict.findings} == {"grad_scale"}
