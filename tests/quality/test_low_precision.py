"""In low precision what is normal is measured: no false alarm, and real faults are still found."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Dropout,
    Dtype,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Norm,
    Plan,
    Precision,
    Repeat,
    Sequential,
    Step,
)
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from fsdpfuzz.verdict import Verdict

FLAT = Norm(affine=False)


def plan(
    api: str, dtype: Dtype, paths: tuple[str, ...] = ("",), *, reduce: Dtype | None = None
) -> Plan:
    precision = Precision(param=dtype, reduce=reduce)
    if api == "fsdp1":
        return Fsdp1Plan(units=tuple(Fsdp1Unit(path=path, precision=precision) for path in paths))
    return Fsdp2Plan(units=tuple(Fsdp2Unit(path=path, precision=precision) for path in paths))


def case(model: Any, width: int, made: Plan, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {
        "world_size": 2,
        "model": model,
        "inputs": Dense(width=width, batch=1),
        "plan": made,
        "program": (Forward(), Backward()),
    }
    return CaseSpec(**values | changes)


CANCELS = case(
    FLAT,
    3,
    plan("fsdp1", "float16"),
    seed=91,
    inputs=Dense(width=3, batch=1, requires_grad=True),
    loss="sum",
)
"""The exact gradient of the input is zero; what float16 makes of it says nothing."""
OVERFLOWS = case(
    Sequential(children=(Linear(out=2, bias=False), Dropout(p=0.5), Repeat(body=FLAT, times=3))),
    2,
    plan("fsdp2", "float16"),
)
"""Norming two equal numbers, over and over: the gradient leaves the range of float16."""


def verdict(pool: Pool, given: CaseSpec) -> Verdict:
    return judge(given, pool.run(given))


def test_what_cancels_in_float16_is_no_finding(pool: Pool) -> None:
    seen = pool.run(CANCELS)
    assert judge(CANCELS, seen).findings == ()
    for report in seen.reports:
        assert report is not None
        (found,) = [c for c in report.subjects[0].comparisons if c.quantity == "input_grad"]
        assert found.error > 1e-5 > found.scale
        assert found.coarse == pytest.approx(found.error, rel=1.0)


def test_what_leaves_the_range_of_float16_is_vacuous(pool: Pool) -> None:
    found = verdict(pool, OVERFLOWS)
    assert (found.status, found.reason) == ("vacuous", "training leaves the range of float16")


def test_what_comes_before_is_compared_all_the_same(pool: Pool) -> None:
    seen = pool.run(OVERFLOWS)
    for report in seen.reports:
        assert report is not None
        assert (report.beyond, report.live, report.dead) == ("the range of float16", 0, ())
        assert {c.quantity for c in report.subjects[0].comparisons} == {"loss", "output"}


def test_no_clipping_is_an_error_where_training_leaves_the_range(pool: Pool) -> None:
    """Neither the reference's, which is not asked for one, nor FSDP's."""
    clip = Clip(max_norm=1.0, error_if_nonfinite=True)
    found = verdict(pool, replace(OVERFLOWS, program=(Forward(), Backward(), clip)))
    assert (found.status, found.reason) == ("vacuous", "training leaves the range of float16")


TWO = Sequential(children=(Linear(out=4), Linear(out=3)))
FAULTS = ("halved", "summed", "first_lost")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_gradient_is_found_in_low_precision(fault: str) -> None:
    with Pool(2, "gloo", injection=f"tests.quality.injected_precision:{fault}") as pool:
        for api in ("fsdp1", "fsdp2"):
            for dtype in ("float16", "bfloat16"):
                given = case(
                    TWO,
                    5,
                    # By default newer torch reduces in the dtype of the parameters.
                    plan(api, dtype, ("0", ""), reduce=dtype),
                    inputs=Dense(width=5, batch=4),
                    program=(Forward(), Backward(), Step()),
                )
                keys = [finding.key for finding in verdict(pool, given).findings]
                assert keys[:1] == [f"grad_parity/mismatch/{api}"], (api, dtype)


def test_without_a_fault_there_is_none(pool: Pool) -> None:
    for api in ("fsdp1", "fsdp2"):
        for dtype in ("float16", "bfloat16"):
            made = plan(api, dtype, ("0", ""))
            given = case(TWO, 5, made, program=(Forward(), Backward(), Step()) * 2)
            assert verdict(pool, given).status == "passed"
