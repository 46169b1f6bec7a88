"""A unit's output that is changed in place comes out right, and is found where it breaks."""

from __future__ import annotations

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
)
from fsdpfuzz.case.modules import InPlace
from tests.injected.by_hand import judged

PLANS: dict[str, Plan] = {
    "fsdp1": Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="1.inner"))),
    "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1.inner"))),
}


def case(api: str, *, view: bool = False) -> CaseSpec:
    layer = Linear(out=4)
    model = Sequential(children=(layer, InPlace(body=layer, view=view), layer))
    program = (*ITERATION, *ITERATION)
    return CaseSpec(
        world_size=2, model=model, inputs=Dense(width=4), plan=PLANS[api], program=program
    )


@pytest.mark.parametrize("api", PLANS)
def test_an_output_that_is_changed_is_right(api: str) -> None:
    assert judged(case(api)).status == "passed"


@pytest.mark.parametrize("api", PLANS)
def test_a_view_that_is_changed_is_found_to_break_the_backward(api: str) -> None:
    (finding,) = judged(case(api, view=True)).findings
    assert (finding.invariant, finding.operation) == ("no_crash", "backward")


def test_a_unit_whose_every_output_is_a_view_is_found() -> None:
    fault = "benchmarks.faults.injections:fsdp1_unit_puts_out_a_view"
    (finding,) = judged(case("fsdp1"), fault).findings
    assert (finding.invariant, finding.operation) == ("no_crash", "backward")
    assert judged(case("fsdp2"), fault).status == "passed"
