"""A reference that contradicts itself is no reference: nothing is held against FSDP, or passed."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Activation,
    Backward,
    Buffered,
    CaseSpec,
    Checkpoint,
    Dense,
    Dropout,
    Embedding,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Linear,
    Norm,
    Optimizer,
    Repeat,
    Residual,
    Sequential,
    Step,
    Tokens,
    ZeroGrad,
)
from fsdpfuzz.case.modules import Attention, ConvNorm, Keyed, KvReuse, Lora, Parametrized
from fsdpfuzz.case.operations import Apply
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.policies import Wrap
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


def assert_nothing_is_held_against_it(case: CaseSpec) -> None:
    with Pool(case.world_size, "gloo") as pool:
        seen = pool.run(case)
    assert fault_of(seen) == ""
    assert judge(case, seen).status == "passed"
    beyond = {report.beyond for report in seen.reports if report is not None}
    assert beyond == {"what rounding in float32 lets be told"}


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
    assert_nothing_is_held_against_it(case)


def test_of_a_softmax_of_what_has_exploded_nothing_is_said() -> None:
    """Logits that are equal, but for a rounding that is larger than 1: it takes either token."""
    summed = Repeat(body=Buffered(persistent=False, updates=True), times=3, no_grad="body")
    waiting = (Forward(sync=False), Backward())
    iteration = (*waiting, *waiting, Forward(), Backward(), Step(), ZeroGrad())
    case = CaseSpec(
        world_size=2,
        seed=81,
        model=Sequential(
            children=(
                Embedding(rows=2, out=2),
                Linear(out=4),
                Buffered(),
                Keyed(body=summed, added=True),
                KvReuse(heads=4, kv_heads=4),
                Gain(),
            )
        ),
        inputs=Tokens(length=2),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)),
        optimizer=Optimizer(lr=1.0),
        program=(*iteration, *iteration),
    )
    assert_nothing_is_held_against_it(case)


def test_a_gradient_may_be_steep_in_one_training_alone() -> None:
    """Dropout leaves a norm one element, which a layer in bfloat16 put out near zero."""
    body = Sequential(
        children=(
            Linear(out=5, bias=False),
            Residual(body=Sequential(children=(Dropout(p=0.5), Norm(variant="rms")))),
            Linear(out=5, bias=False),
        )
    )
    children = (
        Repeat(body=body, times=3),
        Activation(fn="tanh"),
        Dropout(p=0.5),
        Activation(fn="tanh"),
    )
    case = CaseSpec(
        world_size=2,
        seed=49,
        model=Sequential(children=children),
        inputs=Dense(width=5, batch=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0.body.2"))),
        frozen=("0.body.1.body.1.weight", "0.body.2.weight"),
        stored_low=("0.body.2",),
        program=(Forward(), Backward()),
    )
    with Pool(2, "gloo") as pool:
        seen = pool.run(case)
    assert fault_of(seen) == ""
    assert judge(case, seen).status in ("passed", "vacuous")


def test_what_is_left_of_a_gradient_that_cancels_is_rounding() -> None:
    """A norm of which dropout left two elements, or one; without float64 to tell what is right."""
    children = (
        Parametrized(out=3),
        Linear(out=3, bias=False),
        Dropout(p=0.5),
        Norm(affine=False),
    )
    twice = (Forward(), Backward(), Forward(), Backward())
    once = (ZeroGrad(), Forward(grad=False), Forward(), Backward())
    case = CaseSpec(
        world_size=2,
        seed=683,
        model=Sequential(children=children),
        inputs=Dense(width=4),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        optimizer=Optimizer(momentum=0.0),
        program=(*twice, Step(), *twice, Forward(), Backward(), Step(), Apply(), *once),
    )
    with Pool(2, "gloo", injection="tests.injected.references:is_right_in_float32") as pool:
        assert judge(case, pool.run(case)).status == "passed"


@pytest.mark.parametrize("wrap", ["nested", "enable_wrap"])
def test_the_plain_model_recomputes_what_it_never_offloaded(wrap: Wrap) -> None:
    """What save_on_cpu does wrong ends FSDP's training, and not the one it is held against."""
    children = (Attention(bias=False), Linear(out=1), Buffered(updates=True))
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=children),
        inputs=Dense(width=1, length=2),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap=wrap),
        checkpoints=(Checkpoint(path="1", kind="function_offload"),),
        program=(Forward(), Backward()),
    )
    with Pool(2, "gloo") as pool:
        seen = pool.run(case)
    assert fault_of(seen) == ""
    found = {(f.invariant, f.failure.type) for f in judge(case, seen).findings if f.failure}
    assert found == {("no_crash", "CheckpointError")}


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
