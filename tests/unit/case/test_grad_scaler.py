"""What gradient scaling says, refuses and lowers to, and what an overflow leaves to compare."""

from __future__ import annotations

from typing import Any

import msgspec
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
    Precision,
    Rebuild,
    Sequential,
    Step,
    Switch,
    Variant,
    ZeroGrad,
    anatomy,
    check,
    digest,
    features,
    lower,
    needs_gloo,
)
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.modules import Empty
from fsdpfuzz.case.operations import Clip, Overflow, Unscale, UpdateScale
from fsdpfuzz.case.operations.optim_state import OptimState
from fsdpfuzz.case.operations.overflow import incomparable, overflown
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.recipe import Call, Do, Operation, Statement, walk
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler

FIRST = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
SECOND = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
GRADED: tuple[Op, ...] = (Forward(), Backward())
ALL = OVERFLOW, UNSCALE, STEP, UPDATE = (
    Overflow(parameter="1.weight"),
    Unscale(),
    Step(),
    UpdateScale(),
)


def case(*program: Op, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Sequential(children=(Linear(out=2), Linear(out=2))),
        "inputs": Dense(width=2),
        "plan": SECOND,
        "program": program,
        "grad_scaler": GradScaler(),
    }
    return CaseSpec(**values | changes)


def told(given: CaseSpec, who: str) -> list[Call]:
    statements: tuple[Statement, ...] = lower(anatomy(given)).main
    return [
        s.call
        for s in walk(statements)
        if isinstance(s, Do) and s.who in (who, "both") and isinstance(s.call, Call)
    ]


def functions(given: CaseSpec, who: str) -> list[str]:
    return [str(call.function) for call in told(given, who)]


def refusal(given: CaseSpec) -> str:
    with pytest.raises(CaseError) as refused:
        check(given)
    return str(refused.value)


def test_a_case_without_has_the_digest_that_it_had() -> None:
    given = case(*GRADED, STEP, grad_scaler=None)
    assert digest(given) != digest(case(*GRADED, STEP))
    assert "grad_scaler" not in msgspec.json.encode(given).decode()
    assert features(given)["grad_scaler"] == features(given)["unscaled"] == "off"
    assert ".scale" not in functions(given, "fsdp")


@pytest.mark.parametrize(
    ("plan", "own"),
    [(FIRST, "steps.grad_scaler.sharded"), (SECOND, "steps.grad_scaler.plain")],
)
def test_losses_and_steps_go_through_the_scaler(plan: Any, own: str) -> None:
    given = case(*GRADED, OVERFLOW, UNSCALE, STEP, UPDATE, plan=plan)
    check(given)
    assert features(given)["grad_scaler"] == "overflow"
    assert features(given)["unscaled"] == "on"
    for who, made in (("fsdp", own), ("reference", "steps.grad_scaler.plain")):
        calls = functions(given, who)
        wanted = [made, ".scale", ".backward", ".unscale_", ".step", ".update"]
        assert [name for name in calls if name in wanted] == wanted
    (stepped,) = [call for call in told(given, "fsdp") if call.function == ".step"]
    assert len(stepped.args) == 2


def test_the_plain_model_in_float16_has_another_scaler() -> None:
    unit = Fsdp2Unit(path="", precision=Precision(param="float16"))
    given = case(*GRADED, STEP, plan=Fsdp2Plan(units=(unit,)))
    assert "steps.grad_scaler.plain" in functions(given, "fsdp")
    assert "steps.grad_scaler.by_dtype" in functions(given, "reference")


@pytest.mark.parametrize(
    ("unit", "step", "ranks"),
    [
        (Fsdp1Unit(path="", use_orig_params=False), "steps.grad_scaler.overflow", (0,)),
        (Fsdp1Unit(path="", use_orig_params=True), "steps.grad_scaler.overflow_here", None),
        (Fsdp2Unit(path=""), "steps.grad_scaler.overflow_first", None),
    ],
)
def test_a_gradient_overflows_on_some_rank(unit: Any, step: str, ranks: Any) -> None:
    plan = FIRST if isinstance(unit, Fsdp1Unit) else SECOND
    given = case(*GRADED, OVERFLOW, STEP, plan=msgspec.structs.replace(plan, units=(unit,)))
    (operation,) = [
        s
        for s in walk(lower(anatomy(given)).main)
        if isinstance(s, Operation) and s.name == "overflow"
    ]
    own, right = operation.body
    assert isinstance(own, Do)
    assert isinstance(right, Do)
    assert isinstance(own.call, Call)
    assert (own.who, own.call.function, own.ranks) == ("fsdp", step, ranks)
    assert isinstance(right.call, Call)
    assert (right.who, right.call.function) == ("reference", "steps.grad_scaler.overflow")


def test_a_model_that_is_made_again_has_a_scaler_that_loads() -> None:
    given = case(*GRADED, STEP, UPDATE, Rebuild(plan=SECOND), *GRADED, STEP)
    check(given)
    assert functions(given, "fsdp").count("steps.grad_scaler.made_again") == 1
    assert "steps.grad_scaler.made_again" not in functions(given, "reference")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (GRADED, "a scaler without a step"),
        ((STEP,), "the optimizer may have no gradient"),
        ((*GRADED, UPDATE, STEP), "no step comes before this update"),
        ((*GRADED, STEP, STEP), "step before the update of the step before"),
        ((*GRADED, UNSCALE, UNSCALE, STEP), "unscale before the update"),
        ((*GRADED, UNSCALE, *GRADED, STEP), "backward between unscaling and the update"),
        ((*GRADED, STEP, *GRADED, UPDATE), "backward between unscaling and the update"),
        ((*GRADED, ZeroGrad(), STEP), "the optimizer may have no gradient"),
        ((Forward(), UNSCALE, Backward(), STEP), "unscale where gradients are not reduced"),
        ((Forward(), OVERFLOW, Backward(), STEP), "overflow where gradients are not reduced"),
        ((OVERFLOW, *GRADED, STEP), "nobody knows that the optimizer has that gradient"),
        ((*GRADED, OVERFLOW, *GRADED, STEP), "forward while gradients are not finite"),
        ((*GRADED, STEP, UPDATE, OVERFLOW), "an overflow that no step meets"),
        (
            (*GRADED, OVERFLOW, Clip(max_norm=1.0, error_if_nonfinite=True), STEP),
            "clip while gradients are not finite",
        ),
        (
            (*GRADED, OVERFLOW, STEP, ZeroGrad(), OptimState()),
            "an overflow before the optimizer is saved",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(program: tuple[Op, ...], words: str) -> None:
    assert words in refusal(case(*program))


def test_a_gradient_without_elements_does_not_overflow() -> None:
    model = Sequential(children=(Empty(), Linear(out=2)))
    program = (*GRADED, Overflow(parameter="0.rows"), STEP)
    assert "without elements is always finite" in refusal(case(*program, model=model))


def test_what_has_no_gradient_that_the_optimizer_sees_is_refused() -> None:
    held = case(*GRADED, OVERFLOW, STEP, held_out=("1.weight",))
    assert "nobody knows" in refusal(held)
    check(msgspec.structs.replace(held, held_out=("1.bias",)))
    frozen = case(*GRADED, OVERFLOW, STEP, frozen=("1.weight",))
    assert "nobody knows" in refusal(frozen)
    assert "$.twins[0]" in refusal(
        case(*GRADED, OVERFLOW, STEP, twins=(Variant(name="v", held_out=("1.weight",)),))
    )


@pytest.mark.parametrize("op", [OVERFLOW, UNSCALE, UPDATE])
def test_its_operations_need_a_scaler(op: Op) -> None:
    given = case(*GRADED, STEP, op, grad_scaler=None)
    assert "goes with a grad_scaler alone" in refusal(given)


def test_it_goes_with_no_tracker_and_nothing_that_fsdp2_leaves_alone() -> None:
    assert "memory tracker" in refusal(case(*GRADED, STEP, probes=("mem_tracker",)))
    inner = Fsdp2Plan(units=(Fsdp2Unit(path="0"),))
    assert "no list of tensors and DTensors" in refusal(case(*GRADED, STEP, plan=inner))


def test_offloaded_gradients_need_gloo() -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", cpu_offload=True),))
    assert "overflows" in needs_gloo(anatomy(case(*GRADED, STEP, plan=plan)))
    assert not needs_gloo(anatomy(case(*GRADED, STEP, plan=plan, grad_scaler=None)))


def test_nothing_is_said_of_gradients_that_are_not_finite() -> None:
    clip = Clip(max_norm=1.0)
    later = (ZeroGrad(), *GRADED, STEP)
    given = case(*GRADED, OVERFLOW, UNSCALE, clip, STEP, UPDATE, *later)
    check(given)
    assert overflown(given) == frozenset(range(2, 7))
    assert incomparable(given) == {3, 4}


@pytest.mark.parametrize(
    ("cut", "parameter", "held_out", "value"),
    [
        ("1", "1.weight", (), "overflow apart"),
        ("1", "1.weight", ("0.weight",), "overflow apart"),
        ("1", "1.weight", ("0.weight", "0.bias"), "overflow"),
        ("1", "0.weight", (), "overflow"),
        ("0", "0.weight", (), "overflow"),
        ("0", "1.weight", (), "overflow"),
    ],
)
def test_an_overflow_may_be_on_an_axis_that_the_first_gradient_is_not_on(
    cut: str, parameter: str, held_out: tuple[str, ...], value: str
) -> None:
    given = case(
        *GRADED,
        Overflow(parameter=parameter),
        STEP,
        optimizer=Optimizer(foreach=False),
        tensor_parallel=TensorParallel(modules=(Parallel(module=cut),)),
        held_out=held_out,
    )
    check(given)
    assert features(given)["grad_scaler"] == value


@pytest.mark.parametrize(
    ("replicated", "parameter", "value"),
    [
        ("", "1.weight", "overflow apart"),
        ("", "0.weight", "overflow"),
        ("0", "1.weight", "overflow apart"),
        ("1", "1.weight", "overflow"),
        ("1", "0.weight", "overflow"),
    ],
)
def test_an_overflow_may_be_sharded_where_the_first_gradient_is_replicated(
    replicated: str, parameter: str, value: str
) -> None:
    units = [Fsdp2Unit(path=path, replicated=path == replicated) for path in ("", "0", "1")]
    kept = units if replicated else [units[0], units[2]]
    given = case(*GRADED, Overflow(parameter=parameter), STEP, plan=Fsdp2Plan(units=tuple(kept)))
    check(given)
    assert features(given)["grad_scaler"] == value


def test_the_first_gradient_may_be_that_of_a_branch_that_not_all_ranks_take() -> None:
    units = (Fsdp2Unit(path=""), Fsdp2Unit(path="0.branches.0", replicated=True))
    branches = Switch(children=(Linear(out=2), Linear(out=2)))
    model = Sequential(children=(branches, Linear(out=2)))
    program = (*GRADED, OVERFLOW, STEP)
    given = case(*program, model=model, plan=Fsdp2Plan(units=units))
    check(given)
    assert features(given)["grad_scaler"] == "overflow apart"
    sharded = case(*program, model=model, plan=Fsdp2Plan(units=units[:1]))
    assert features(sharded)["grad_scaler"] == "overflow"


def test_plainer_are_none_and_the_usual_scale() -> None:
    given = case(*GRADED, OVERFLOW, STEP, UPDATE, grad_scaler=GradScaler(init_scale=1.0))
    plainer = [found.case for found in simpler(given)]
    assert case(*GRADED, STEP, grad_scaler=None) in plainer
    assert case(*GRADED, OVERFLOW, STEP, UPDATE) in plainer
