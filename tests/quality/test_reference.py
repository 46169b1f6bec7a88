"""A reference that contradicts itself is no reference: nothing is held against FSDP, or passed."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Backward, CaseSpec, Forward, Fsdp1Plan, Fsdp1Unit, ZeroGrad
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop._harness import fault_of
from fsdpfuzz.pool import Pool
from tests.unit.loop.standins import make_case

MISTAKE = "tests.injected.references:averages_twice_in_float32"


def averaged() -> CaseSpec:
    """Of which DDP cannot be the reference: what no unit manages it would average, too."""
    unit = Fsdp1Unit(path="", ignored=("1",))
    program = (Forward(), Backward(), ZeroGrad(), Forward(), Backward())
    return msgspec.structs.replace(
        make_case((3, 4)), plan=Fsdp1Plan(units=(unit,)), program=program
    )


def test_two_trainings_that_disagree_are_a_harness_error() -> None:
    case = averaged()
    with Pool(2, "gloo", injection=MISTAKE) as pool:
        seen = pool.run(case)
    fault = fault_of(seen)
    assert "two trainings disagree: gradients at operation 1 (Backward)" in fault
    # What it would have been: a gradient of half the size is explained by half of it.
    assert judge(case, seen).status == "passed"


def test_two_trainings_that_agree_are_none() -> None:
    with Pool(2, "gloo") as pool:
        assert fault_of(pool.run(averaged())) == ""
