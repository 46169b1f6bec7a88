"""Which unit owns what, and what FSDP must refuse because of it."""

from __future__ import annotations

import re

import msgspec
import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    REJECTIONS,
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Idle,
    Linear,
    Lora,
    Plan,
    Residual,
    Sequential,
    Tie,
    Tokens,
    Transformer,
    anatomy,
    check,
    foreseen_rejections,
    mixed_units,
    needs_gloo,
    needs_gpu,
    unit_of,
    within,
)
from fsdpfuzz.case.operations import Clip, Op, OptimState, Rebuild, StateDict, Step
from fsdpfuzz.errors import CaseError

MODEL = Sequential(
    children=(
        Linear(out=4),
        Sequential(children=(Linear(out=4), Residual(body=Linear(out=4, bias=False)))),
        Gain(),
    )
)


def fsdp1(*paths: str, **options: object) -> Fsdp1Plan:
    return Fsdp1Plan(units=tuple(Fsdp1Unit(path=path, **options) for path in paths))  # type: ignore[arg-type]


def fsdp2(*paths: str) -> Fsdp2Plan:
    return Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in paths))


def make(plan: Plan, **changes: object) -> CaseSpec:
    case = CaseSpec(world_size=2, model=MODEL, inputs=Dense(width=4), plan=plan, program=())
    return msgspec.structs.replace(case, **changes)


def owners(plan: Plan, **changes: object) -> dict[str, str | None]:
    return anatomy(make(plan, **changes)).owners


def units(plan: Plan, **changes: object) -> tuple[str, ...]:
    return anatomy(make(plan, **changes)).units


def names(case: CaseSpec) -> list[str]:
    return [rejection.name for rejection in foreseen_rejections(anatomy(case))]


def test_the_innermost_unit_owns_a_parameter() -> None:
    assert owners(fsdp2("", "1", "1.1.body")) == {
        "0.weight": "",
        "0.bias": "",
        "1.0.weight": "1",
        "1.0.bias": "1",
        "1.1.body.weight": "1.1.body",
        "2.gain": "",
    }


def test_nothing_owns_what_lies_outside_of_all_units() -> None:
    found = owners(fsdp2("1"))
    assert found["0.weight"] is None
    assert found["1.1.body.weight"] == "1"


def test_a_path_is_not_taken_for_its_prefix() -> None:
    model = Sequential(children=tuple(Linear(out=4, bias=False) for _ in range(11)))
    found = owners(fsdp2("1"), model=model)
    assert found["1.weight"] == "1"
    assert found["10.weight"] is None


@pytest.mark.parametrize(
    ("path", "outer", "expected"),
    [
        ("10", "1", False),
        ("1.0", "1", True),
        ("1", "1", True),
        ("1", "", True),
        ("1", "1.0", False),
    ],
)
def test_within(path: str, outer: str, expected: bool) -> None:
    assert within(path, outer) is expected


def test_units_are_named_parents_first_whatever_the_order_of_the_plan() -> None:
    assert units(fsdp2("1.0", "0", "")) == ("", "0", "1.0")


def test_roots_are_the_units_that_lie_in_no_other() -> None:
    assert anatomy(make(fsdp2("1.0", "0", "1"))).roots == ("0", "1")
    assert anatomy(make(fsdp2("1.0", "0", ""))).roots == ("",)


def test_classes_become_the_places_of_their_kinds() -> None:
    model = Sequential(children=(Lora(out=4), Idle(), Gain()))
    plan = Fsdp1Plan(
        units=(Fsdp1Unit(path="", sharding="NO_SHARD"),), wrap="module_classes", classes=("linear",)
    )
    a = anatomy(make(plan, model=model))
    assert a.units == ("", "0.base", "0.down", "0.up", "1.idle")
    assert a.owners["2.gain"] == ""
    assert unit_of(plan, "0.up") == Fsdp1Unit(path="", sharding="NO_SHARD")
    assert a.options["0.up"] == unit_of(plan, "0.up")


@pytest.mark.parametrize("plan", [fsdp1(""), fsdp2("")], ids=["fsdp1", "fsdp2"])
def test_an_ignored_module_shares_no_parameter_with_another(plan: Plan) -> None:
    """Its parameters are ignored by all their names: ``embed.weight`` with ``head.weight``."""
    unit = replace(plan.units[0], ignored=("head",))
    tied = Transformer(rows=2, width=2)
    case = replace(
        make(replace(plan, units=(unit,)), model=tied, program=()), inputs=Tokens(batch=1, length=1)
    )
    with pytest.raises(CaseError, match=r"'head' shares 'embed.weight'") as refused:
        check(case)
    assert refused.value.path == "$.plan.units[0].ignored[0]"
    inner = replace(unit, ignored=("transformer.encoder.norm",))
    check(replace(case, plan=replace(plan, units=(inner,))))


def test_an_ignored_module_has_no_owner() -> None:
    found = owners(Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=("1",)),)))
    assert (found["0.weight"], found["1.1.body.weight"]) == ("", None)


def test_another_plan_is_another_anatomy() -> None:
    assert units(fsdp2("")) == ("",)
    assert units(fsdp2("1")) == ("1",)
    assert owners(fsdp2(""))["0.weight"] == ""
    assert owners(fsdp2("1"))["0.weight"] is None


def test_a_policy_takes_the_common_options_of_the_root() -> None:
    listed = (Fsdp1Unit(path="", use_orig_params=True), Fsdp1Unit(path="1"))
    assert not unit_of(Fsdp1Plan(units=listed), "1").use_orig_params  # type: ignore[union-attr]
    policy = Fsdp1Plan(units=listed, wrap="custom_policy")
    assert unit_of(policy, "1").use_orig_params  # type: ignore[union-attr]


def test_a_tied_target_is_frozen_with_its_source() -> None:
    tie = Tie(source="0.weight", target="1.0.weight")
    a = anatomy(make(fsdp2(""), ties=(tie,), frozen=("0.weight",)))
    assert a.frozen == {"0.weight", "1.0.weight"}
    assert "1.0.weight" not in [p.fqn for p in a.distinct]
    assert a.canonical("1.0.weight") == "0.weight"


@pytest.mark.parametrize(
    ("plan", "frozen", "expected"),
    [
        (fsdp1(""), ("0.weight",), ["fsdp1_mixed_requires_grad"]),
        (fsdp1("", use_orig_params=True), ("0.weight",), []),
        (fsdp1("", "0"), ("0.weight", "0.bias"), []),
        (fsdp1("", "0"), ("0.weight",), ["fsdp1_mixed_requires_grad"]),
        (fsdp2(""), ("0.weight",), []),
    ],
)
def test_mixed_requires_grad(plan: Plan, frozen: tuple[str, ...], expected: list[str]) -> None:
    assert names(make(plan, frozen=frozen)) == expected


def test_mixed_units_are_named() -> None:
    case = make(fsdp2("", "0", "1"), frozen=("0.weight", "1.0.weight"))
    assert mixed_units(anatomy(case)) == ("0", "1")


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (fsdp1("", "1"), []),
        (fsdp2("", "1"), ["fsdp2_tie_across_units"]),
        (fsdp2("0", "1"), []),
        (fsdp2(""), []),
    ],
)
def test_ties(plan: Plan, expected: list[str]) -> None:
    case = make(plan, ties=(Tie(source="0.weight", target="1.0.weight"),))
    assert names(case) == expected
    assert bool(anatomy(case).split_ties) == (len(plan.units) > 1)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (fsdp1(""), ["fsdp1_scalar_parameter"]),
        (fsdp2("", "0"), ["fsdp2_scalar_parameter"]),
        (fsdp2("0"), []),
    ],
)
def test_scalars(plan: Plan, expected: list[str]) -> None:
    model = Sequential(children=(Linear(out=4), Gain(scalar=True)))
    assert names(make(plan, model=model)) == expected


def test_options_that_must_not_differ() -> None:
    units = (Fsdp1Unit(path="", limit_all_gathers=False), Fsdp1Unit(path="1"))
    assert names(make(Fsdp1Plan(units=units))) == ["fsdp1_mixed_options"]
    assert names(make(Fsdp1Plan(units=units, wrap="custom_policy"))) == []
    apart = (Fsdp1Unit(path="0", limit_all_gathers=False), Fsdp1Unit(path="1"))
    assert names(make(Fsdp1Plan(units=apart))) == []


@pytest.mark.parametrize(
    ("op", "refused"),
    [
        (OptimState(), True),
        (OptimState(own=True), True),
        (Rebuild(plan=fsdp1("0", "1")), True),
        (StateDict(), False),
    ],
)
def test_an_optimizer_of_units_that_are_shown_in_two_ways_is_not_saved(
    op: Op, refused: bool
) -> None:
    apart = (Fsdp1Unit(path="0", use_orig_params=True), Fsdp1Unit(path="1"))
    program = (Forward(), Backward(), Step(), op)
    case = make(Fsdp1Plan(units=apart), program=program)
    assert names(case) == ["fsdp1_mixed_optimizer_state"] * refused
    assert names(make(fsdp1("0", "1"), program=program)) == []
    assert names(msgspec.structs.replace(case, optimizer=None)) == []


MESSAGES = {
    # As torch 2.13.0 gives them.
    "fsdp1_mixed_requires_grad": [
        "1.base has both parameters with requires_grad=True and False. FSDP does not support",
        "Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`",
    ],
    "fsdp1_mixed_options": [
        "Expects one homogeneous value for _use_orig_params but got {False, True}",
        "Expects one homogeneous value for limit_all_gathers but got {False, True}",
    ],
    "fsdp1_mixed_optimizer_state": ["Not all FSDP modules have the same _use_orig_params value"],
    "fsdp1_comm_hook_of_hybrid": [
        "Communication hook is not supported for hybrid strategies: ShardingStrategy.HYBRID_SHARD"
    ],
    "fsdp1_second_comm_hook": ["A communication hook is already registered"],
    "fsdp1_comm_hook_below_the_root": ["register_comm_hook can only be called on a root instance."],
    "fsdp1_scalar_parameter": [
        "FSDP doesn't support scalar parameters. Change gain to a 1D tensor with numel equal to 1."
    ],
    "fsdp1_summon_offload_unsharded": ["offload_to_cpu=True and NO_SHARD is not supported yet"],
    "fsdp2_left_on_meta": [
        "FSDP parameters should be materialized from meta device before training, but the "
        "following were still on meta device: ['weight']"
    ],
    "fsdp2_scalar_parameter": [
        "fully_shard doesn't support scalar parameters. Change gain to a 1D tensor with numel "
        "equal to 1."
    ],
    "fsdp1_mixed_dtypes": [
        "Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32"
    ],
    "fsdp2_not_contiguous": [
        "FSDP does not support non-contiguous parameters yet: param.shape=torch.Size([2, 2]) "
        "param.stride()=(1, 2)"
    ],
    "fsdp2_tie_across_units": [
        "Parameter '1.weight' is shared with a parameter already managed by another FSDP group. "
        "For shared/tied parameters, use fully_shard([module_a, module_b]) to place them"
    ],
    "fsdp2_resharded_by_name": [
        "reshard_after_forward as int is not yet supported with SPMD mesh (dp_mesh_dims)"
    ],
    "fsdp2_uneven_placement": [
        "FSDP does not support uneven sharding on dim 1: torch.Size([3, 3]) (world size: 2)"
    ],
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_messages(name: str) -> None:
    rejection = REJECTIONS[name]
    assert all(rejection.matches(message) for message in MESSAGES[name])
    others = [m for other, texts in MESSAGES.items() if other != name for m in texts]
    assert not any(rejection.matches(message) for message in others)
    assert not rejection.matches("expected to be in states [<TrainingState.IDLE: 1>]")
    re.compile(rejection.pattern)


def test_the_dimension_says_what_cpus_cannot_run() -> None:
    assert needs_gpu(anatomy(make(fsdp1("")))) == ""
    assert needs_gpu(anatomy(make(Fsdp2Plan(units=(Fsdp2Unit(path="", cpu_offload=True),))))) == ""
    part = Fsdp1Plan(units=(Fsdp1Unit(path="0", cpu_offload=True), Fsdp1Unit(path="")))
    assert "needs a GPU" in needs_gpu(anatomy(make(part)))


def test_the_dimension_says_what_nccl_alone_cannot_reduce() -> None:
    """PyTorch asks for a process group of both backends there."""
    program = (Forward(), Backward(), Clip(max_norm=1.0))
    offloaded = Fsdp2Plan(units=(Fsdp2Unit(path="0", cpu_offload=True), Fsdp2Unit(path="")))
    assert "on the CPU" in needs_gloo(anatomy(make(offloaded, program=program)))
    assert needs_gloo(anatomy(make(offloaded, program=program[:-1]))) == ""
    assert needs_gloo(anatomy(make(fsdp2("0", ""), program=program))) == ""
    # FSDP1 brings the norm to the GPU.
    assert needs_gloo(anatomy(make(fsdp1("", cpu_offload=True), program=program))) == ""
