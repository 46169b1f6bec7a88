"""Where the optimizer's state dict goes wrong: which units and parameters are in such a place."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Idle,
    Linear,
    Node,
    Optimizer,
    Plan,
    Rebuild,
    Repeat,
    RequiresGrad,
    Sequential,
    Step,
    Switch,
    anatomy,
    check,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.operations import ClearGrad, Interrupt, Op, OptimState, StateDict, ZeroGrad
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=4), Linear(out=4)))
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
TAKEN: tuple[Op, ...] = (*TRAIN, OptimState(strict=False))
AROUND = Checkpoint(path="1", side="around")


def orig(*paths: str, **options: object) -> Fsdp1Plan:
    return fsdp1(*paths, use_orig_params=True, **options)


def misnamed(case: CaseSpec) -> list[str]:
    a = anatomy(case)
    return [path for path in a.units if unit_features(a, path)["misnamed"] == "on"]


def having(case: CaseSpec, feature: str) -> list[str]:
    a = anatomy(case)
    return [p.fqn for p in a.parameters if parameter_features(a, p.fqn)[feature] == "on"]


@pytest.mark.parametrize(
    ("plan", "checkpoint", "expected"),
    [
        (fsdp1(""), Checkpoint(path=""), [""]),
        (fsdp1(""), Checkpoint(path="1"), [""]),
        (fsdp1(""), Checkpoint(path="1", kind="offload"), [""]),
        (fsdp1(""), Checkpoint(path="1", kind="function"), []),
        (fsdp1("", "1"), Checkpoint(path="1"), ["1"]),
        (fsdp1("", "1"), AROUND, ["1"]),
        # What lies in the wrapper is another unit's, or no unit's.
        (fsdp1("0"), Checkpoint(path="1"), []),
        (fsdp1("0"), Checkpoint(path=""), []),
        (orig(""), Checkpoint(path=""), []),
        (orig("", "1"), Checkpoint(path="1"), []),
        (orig("", "1"), AROUND, ["1"]),
    ],
)
def test_a_wrapper_hides_the_names_of_a_unit(
    plan: Plan, checkpoint: Checkpoint, expected: list[str]
) -> None:
    case = make(plan, model=LAYERS, program=TAKEN, checkpoints=(checkpoint,))
    assert misnamed(case) == expected


def test_names_matter_where_the_state_goes_through_the_common_api() -> None:
    case = make(fsdp1(""), model=LAYERS, program=TAKEN, checkpoints=(Checkpoint(path=""),))
    for ops, expected in (
        ((OptimState(own=True),), []),
        ((OptimState(own=True), OptimState()), [""]),
        ((Rebuild(plan=case.plan),), [""]),
        ((), []),
    ):
        assert misnamed(msgspec.structs.replace(case, program=(*TRAIN, *ops))) == expected
    assert "misnamed" not in unit_features(anatomy(make(fsdp2(""))), "")


@pytest.mark.parametrize(
    ("plan", "model", "ranks", "expected"),
    [
        # Four elements and two, cut into three and three.
        (orig(""), Linear(out=2), 2, ["bias"]),
        (orig(""), Linear(out=2, bias=False), 2, []),
        # The second parameter begins at the fourth of six elements, for the sake of alignment.
        (
            orig(""),
            Sequential(children=(Linear(out=1, bias=False), Linear(out=2, bias=False))),
            2,
            ["0.weight", "1.weight"],
        ),
        # The last rank has nothing at all.
        (orig(""), Linear(out=2, bias=False), 3, []),
        (orig("", sharding="NO_SHARD"), Linear(out=2), 2, []),
        (fsdp1(""), Linear(out=2), 2, []),
    ],
)
def test_a_rank_lacks_a_parameter(plan: Plan, model: Node, ranks: int, expected: list[str]) -> None:
    width = Dense(width=2, batch=1)
    case = make(plan, model=model, world_size=ranks, inputs=width, program=TAKEN)
    assert having(case, "lacking") == expected


def test_a_rank_lacks_what_is_trained_later() -> None:
    case = make(orig(""), model=Linear(out=2), inputs=Dense(width=2, batch=1), program=TAKEN)
    case = msgspec.structs.replace(case, frozen=("weight", "bias"))
    assert having(case, "lacking") == []
    told = RequiresGrad(parameters=("weight", "bias"), value=True)
    assert having(msgspec.structs.replace(case, program=(told, *TAKEN)), "lacking") == ["bias"]


def test_a_rank_lacks_no_parameter_that_is_not_stepped() -> None:
    case = make(orig(""), model=Linear(out=2), inputs=Dense(width=2, batch=1), program=TAKEN)
    assert having(msgspec.structs.replace(case, frozen=("bias",)), "lacking") == []
    assert having(msgspec.structs.replace(case, held_out=("bias",)), "lacking") == []
    assert "lacking" not in parameter_features(anatomy(make(fsdp2(""))), "0.weight")


FREEZE = RequiresGrad(parameters=("0.weight",), value=False)
THAW = RequiresGrad(parameters=("0.weight",), value=True)
LOAD = OptimState(strict=False)
FLAT = ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("plan", "program", "expected"),
    [
        (fsdp2(""), (*TRAIN, FREEZE, LOAD), ["0.weight"]),
        (orig(""), (*TRAIN, FREEZE, LOAD), ["0.weight"]),
        # A flat parameter is frozen as one.
        (fsdp1(""), (*TRAIN, FREEZE, LOAD), FLAT),
        (fsdp1("0"), (*TRAIN, FREEZE, LOAD), FLAT[:2]),
        (fsdp2(""), (*TRAIN, FREEZE, Rebuild(plan=fsdp2(""))), ["0.weight"]),
        # So it is in a model that is made anew and frozen after that.
        (fsdp1(""), (*TRAIN, FREEZE, Rebuild(plan=fsdp1(""))), FLAT),
        (fsdp1(""), (*TRAIN, FREEZE, OptimState(own=True)), []),
        (fsdp2(""), (*TRAIN, LOAD, FREEZE), []),
        (fsdp2(""), (*TRAIN, FREEZE, THAW, LOAD), []),
        # It has no state yet.
        (fsdp2(""), (FREEZE, *TRAIN, LOAD), []),
    ],
)
def test_a_parameter_is_frozen_while_its_state_is_loaded(
    plan: Plan, program: tuple[Op, ...], expected: list[str]
) -> None:
    assert having(make(plan, model=LAYERS, program=program), "loaded_frozen") == expected
    held_out = make(plan, model=LAYERS, program=program, held_out=("0.weight",))
    assert "0.weight" not in having(held_out, "loaded_frozen")


OWN = OptimState(own=True)
FLATTENED = OptimState(flatten=True, strict=False)
DROP_UNIT = ClearGrad(parameters=("0.weight", "0.bias"))
FREEZE_UNIT = RequiresGrad(parameters=("0.weight", "0.bias"), value=False)
WITHOUT: tuple[Op, ...] = (Forward(), Backward(), DROP_UNIT, Step())
IDLE = Sequential(children=(Linear(out=4), Idle(), Linear(out=4)))
SWITCHED = Sequential(children=(Linear(out=4), Switch(children=(Linear(out=4), Linear(out=4)))))


@pytest.mark.parametrize(
    ("plan", "program", "expected"),
    [
        (fsdp1("0"), (*WITHOUT, FLATTENED), FLAT[:2]),
        (orig("", sharding="NO_SHARD"), (*WITHOUT, FLATTENED), FLAT[:2]),
        (fsdp2(""), (*WITHOUT, FLATTENED), FLAT[:2]),
        (fsdp2(""), (*WITHOUT, LOAD), []),
        (fsdp2(""), (*WITHOUT, OWN), []),
        (fsdp2(""), (*TRAIN, *WITHOUT, FLATTENED), []),
        (fsdp2(""), (*WITHOUT, FREEZE_UNIT, FLATTENED), []),
        # With neither states nor gradients, all of the states are made; not beside gradients.
        (fsdp2(""), (Step(), FLATTENED), []),
        (fsdp2(""), (Forward(), Backward(), ZeroGrad(), Step(), FLATTENED), []),
        (fsdp2(""), (Forward(), Backward(), FLATTENED, Step()), FLAT),
        (fsdp2("0"), (Forward(target="0"), Backward(), Step(), FLATTENED), FLAT[2:]),
    ],
)
def test_a_flattened_state_lacks_a_parameter(
    plan: Plan, program: tuple[Op, ...], expected: list[str]
) -> None:
    case = make(plan, model=LAYERS, program=program)
    assert having(case, "stateless") == expected
    held_out = msgspec.structs.replace(case, held_out=("0.bias",))
    assert "0.bias" not in having(held_out, "stateless")


@pytest.mark.parametrize(
    ("plan", "model", "expected"),
    [
        (fsdp2(""), IDLE, ["1.idle.weight", "1.idle.bias"]),
        # Its gradient is zero where a flat parameter has one.
        (fsdp1(""), IDLE, []),
        (fsdp1("", "1"), IDLE, ["1.idle.weight", "1.idle.bias"]),
        (fsdp2(""), SWITCHED, [f"1.branches.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")]),
        (fsdp2(""), LAYERS, []),
    ],
)
def test_what_is_unused_has_no_state(plan: Plan, model: Node, expected: list[str]) -> None:
    case = make(plan, model=model, program=(*TRAIN, FLATTENED))
    assert having(case, "stateless") == expected
    again = msgspec.structs.replace(case, checkpoints=(Checkpoint(path="0", reentrant=True),))
    # Without an input that requires grad the first layer gets none, unless a flat parameter does.
    cut = [] if anatomy(case).fsdp1 else ["0.weight", "0.bias"]
    assert having(again, "stateless") == cut + expected
    plain = msgspec.structs.replace(case, optimizer=Optimizer(momentum=0.0))
    assert len(having(plain, "stateless")) == len(anatomy(plain).parameters)


ONCE: tuple[Op, ...] = (Forward(), Backward())
LATER: tuple[Op, ...] = (Forward(sync=False), Backward())


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((*ONCE, *ONCE), ["", "0"]),
        ((*ONCE, *LATER), ["", "0"]),
        ((*LATER, *ONCE, *ONCE), ["", "0"]),
        ((*LATER, *ONCE), []),
        ((*LATER, *LATER, *ONCE), []),
        ((*ONCE, ZeroGrad(), *ONCE), []),
        # Zeros may be taken for either.
        ((*ONCE, ZeroGrad(set_to_none=False), *ONCE), []),
        ((*ONCE, DROP_UNIT, *ONCE), [""]),
        ((*ONCE, FREEZE_UNIT, *ONCE), [""]),
        (ONCE, []),
    ],
)
def test_a_backward_meets_reduced_gradients(program: tuple[Op, ...], expected: list[str]) -> None:
    a = anatomy(make(fsdp1("", "0"), model=LAYERS, program=program))
    units = [path for path in a.units if unit_features(a, path)["reduced_again"] == "on"]
    assert units == expected


BRANCHES = ("0.branches.0", "0.branches.1")
SWITCH = Sequential(children=(Switch(children=(Linear(out=4), Linear(out=4))), Linear(out=4)))
FREEZE_LAST = RequiresGrad(parameters=("1.weight", "1.bias"), value=False)


@pytest.mark.parametrize(
    ("units", "program", "expected"),
    [
        (("", "0", BRANCHES[0]), ONCE, {"0": "on"}),
        (("", "0", BRANCHES[1]), ONCE, {}),
        (("", "0"), ONCE, {}),
        # The unit on the other path is not called at all.
        (("", *BRANCHES), ONCE, {}),
        # What a flip leaves behind is frozen, too.
        (("", "0", BRANCHES[1]), (*ONCE, Flip(path="0", ranks=(1,)), *ONCE), {"0": "frozen"}),
        # The hook on its inputs reshards it, if a backward comes to them.
        (("", "1"), (*ONCE, FREEZE_LAST, *ONCE), {"1": "through"}),
        (("", "1"), (*ONCE, FREEZE_LAST, Forward(drop=True), *ONCE), {"1": "frozen"}),
        (("", "1"), (*ONCE, FREEZE_LAST, *ONCE, Forward(grad=False)), {"1": "through"}),
        (("", "1"), (*ONCE, FREEZE_LAST), {}),
        (("", "1"), (*ONCE, FREEZE_LAST, Forward(grad=False)), {}),
    ],
)
def test_a_forward_gives_a_unit_no_gradient(
    units: tuple[str, ...], program: tuple[Op, ...], expected: dict[str, str]
) -> None:
    assert quiet(make(orig(*units), model=SWITCH, program=program)) == expected


def test_a_unit_of_what_is_never_used_is_quiet_only_where_it_is_called() -> None:
    for units, expected in ((("", "1"), {"1": "on"}), (("", "1.idle"), {}), (("",), {})):
        assert quiet(make(orig(*units), model=IDLE, program=ONCE)) == expected
    frozen = ("1.idle.weight", "1.idle.bias")
    case = make(orig("", "1"), model=IDLE, program=ONCE, frozen=frozen)
    assert quiet(case) == {"1": "through"}


@pytest.mark.parametrize(("input_grad", "expected"), [(False, "frozen"), (True, "through")])
def test_gradients_go_through_a_frozen_unit_to_inputs_that_require_some(
    input_grad: bool, expected: str
) -> None:
    case = make(orig("", "0"), model=LAYERS, program=ONCE, frozen=("0.weight", "0.bias"))
    inputs = Dense(width=4, batch=3, requires_grad=input_grad)
    assert quiet(msgspec.structs.replace(case, inputs=inputs)) == {"0": expected}
    # The second call is on what the layer after it put out, which requires grad in either case.
    twice = Repeat(body=Sequential(children=(Linear(out=4), Linear(out=4))), times=2)
    case = make(orig("", "body.0"), model=twice, program=ONCE)
    frozen = ("body.0.weight", "body.0.bias")
    case = msgspec.structs.replace(case, inputs=inputs, frozen=frozen)
    assert quiet(case) == {"body.0": expected}
    case = msgspec.structs.replace(case, frozen=())
    assert quiet(case) == {}


def test_a_unit_may_be_quiet_in_several_ways() -> None:
    frozen = ("1.idle.weight", "1.idle.bias")
    unfrozen = RequiresGrad(parameters=frozen, value=True)
    case = make(orig("", "1"), model=IDLE, program=(*ONCE, unfrozen, *ONCE), frozen=frozen)
    assert quiet(case) == {"1": "frozen"}
    assert quiet(msgspec.structs.replace(case, program=(unfrozen, *ONCE))) == {"1": "on"}


@pytest.mark.parametrize("done", [False, True])
def test_a_forward_that_raises_takes_the_hook_on_inputs_that_require_grad(done: bool) -> None:
    inputs = Dense(width=4, batch=3, requires_grad=True)
    frozen = ("0.weight", "0.bias")
    case = make(orig("", "0"), model=LAYERS, program=ONCE, frozen=frozen, inputs=inputs)
    assert quiet(case) == {"0": "through"}
    raising = (Interrupt(module="1", done=done), *ONCE)
    case = msgspec.structs.replace(case, program=raising)
    check(case)
    assert quiet(case) == {"0": "frozen"}
    assert quiet(msgspec.structs.replace(case, frozen=())) == {}


def quiet(case: CaseSpec) -> dict[str, str]:
    a = anatomy(case)
    told = {path: unit_features(a, path)["quiet"] for path in a.units}
    return {path: how for path, how in told.items() if how != "off"}


def test_a_local_state_dict_is_one_of_several() -> None:
    for form, told in (("local", "on"), ("full", "off")):
        program = (*ONCE, StateDict(form="sharded"), StateDict(form=form))  # type: ignore[arg-type]
        a = anatomy(make(fsdp1("", "0"), model=LAYERS, program=program))
        assert {unit_features(a, path)["local_state"] for path in a.units} == {told}
    assert "local_state" not in unit_features(anatomy(make(fsdp2(""), program=ONCE)), "")


@pytest.mark.parametrize(
    ("plan", "model", "expected"),
    [
        (fsdp1("", "0", sharding="SHARD_GRAD_OP"), LAYERS, "on"),
        (fsdp1("", "0"), LAYERS, "off"),
        (orig("", "0", sharding="SHARD_GRAD_OP"), LAYERS, "off"),
        (
            orig("", "0.body", sharding="SHARD_GRAD_OP"),
            Sequential(children=(Repeat(body=Linear(out=4), times=1, no_grad="body"), LAYERS)),
            "on",
        ),
        (
            orig("", "0.body", sharding="SHARD_GRAD_OP"),
            Sequential(children=(Repeat(body=Linear(out=4), times=2), LAYERS)),
            "off",
        ),
    ],
)
def test_a_unit_left_unsharded_that_shows_its_local_shard(
    plan: Fsdp1Plan, model: Node, expected: str
) -> None:
    a = anatomy(make(plan, model=model, program=TRAIN))
    assert unit_features(a, plan.units[1].path)["sharded_views"] == expected


@pytest.mark.parametrize(
    ("plan", "program", "frozen", "expected"),
    [
        (orig("", sharding="SHARD_GRAD_OP"), (Step(), Forward(drop=True), OptimState()), (), "on"),
        (orig(""), (Step(), Forward(drop=True), OptimState()), (), "off"),
        (orig("", sharding="SHARD_GRAD_OP"), TAKEN, (), "off"),
        (orig("", sharding="SHARD_GRAD_OP"), TAKEN, ("0.weight", "1.weight"), "on"),
        (
            orig("", sharding="SHARD_GRAD_OP"),
            (Step(), Forward(drop=True), Forward(grad=False), OptimState()),
            (),
            "off",
        ),
    ],
)
def test_a_unit_that_is_whole_when_the_optimizer_is_saved(
    plan: Fsdp1Plan, program: tuple[Op, ...], frozen: tuple[str, ...], expected: str
) -> None:
    layers = Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False)))
    case = msgspec.structs.replace(make(plan, model=layers, program=program), frozen=frozen)
    assert unit_features(anatomy(case), "")["whole_at_save"] == expected


@pytest.mark.parametrize(
    ("frozen", "requires_grad", "expected"),
    [
        (("0.weight",), False, "on"),  # Backward ends before it.
        (("0.weight",), True, "off"),
        (("1.weight",), False, "off"),
    ],
)
def test_a_root_that_no_backward_comes_to_is_whole_when_the_optimizer_is_saved(
    frozen: tuple[str, ...], requires_grad: bool, expected: str
) -> None:
    layers = Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False)))
    case = msgspec.structs.replace(
        make(orig("0", sharding="SHARD_GRAD_OP"), model=layers, program=TAKEN),
        frozen=frozen,
        inputs=Dense(width=4, requires_grad=requires_grad),
    )
    assert unit_features(anatomy(case), "0")["whole_at_save"] == expected
