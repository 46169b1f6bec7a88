"""A reference that contradicts itself is no reference: nothing is held against FSDP, or passed."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import (
    Backward,
    Buffered,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Norm,
    Optimizer,
    Sequential,
    Step,
    ZeroGrad,
)
from fsdpfuzz.case.modules import ConvNorm, Lora
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.tensor_parallel import TensorParallel
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


def test_where_rounding_decides_nothing_is_held_against_it() -> None:
    """A norm of a norm, of a scalar that comes near zero, and Adam: no two ways to add up agree."""
    children = (
        Linear(out=2),
        Linear(out=1, bias=False),
        Linear(out=3, bias=False),
        Buffered(),
        Buffered(),
        Norm(),
        Norm(variant="rms"),
    )
    units = tuple(Fsdp2Unit(path=path) for path in ("0", "1", "2", "5", "6"))
    iteration = (Forward(), Backward(), Step(), ZeroGrad())
    case = CaseSpec(
        world_size=4,
        seed=124,
        model=Sequential(children=children),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=units),
        optimizer=Optimizer(name="adam", lr=0.01),
        program=(*iteration, *iteration, *iteration),
    )
    with Pool(4, "gloo") as pool:
        seen = pool.run(case)
    assert fault_of(seen) == ""
    assert judge(case, seen).status == "passed"
    beyond = {report.beyond for report in seen.reports if report is not None}
    assert beyond == {"what rounding in float32 lets be told"}


def test_a_plain_sum_of_what_is_normed_is_constant() -> None:
    """All gradients are rounding, of which one way to compute them leaves none by chance."""
    lora = Sequential(
        children=(Lora(out=4, rank=2, bias=False), ConvNorm(channels=2, affine=False))
    )
    children = (ConvNorm(affine=False), Linear(out=4, bias=False), lora)
    case = CaseSpec(
        world_size=2,
        seed=23,
        model=Sequential(children=children),
        inputs=Dense(width=4, batch=1),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward()),
        loss="sum",
        tensor_parallel=TensorParallel(modules=(Parallel(module="1", style="rowwise"),)),
    )
    with Pool(2, "gloo") as pool:
        assert judge(case, pool.run(case)).status == "passed"
