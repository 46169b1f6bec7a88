"""A list of modules as one unit: what it manages, what it must not be, what FSDP is told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Branches,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Node,
    Op,
    Precision,
    Repeat,
    Sequential,
    Switch,
    Tie,
    anatomy,
    check,
    decode,
    dtypes_fit,
    encode,
    features,
    is_sound,
    lower,
    stands_alone,
    unit_features,
)
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.case.operations import Reshard
from fsdpfuzz.case.recipe import Call, Do, Inside, Items
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from tests.unit.case.test_units import make

LAYER = Linear(out=2)
THREE = Sequential(children=(LAYER, LAYER, LAYER))
BESIDE = Branches(children=(LAYER, LAYER), merge="sum")


def case(
    *modules: str, model: Node = THREE, others: tuple[str, ...] = ("",), **changes: Any
) -> CaseSpec:
    units = [Fsdp2Unit(path=path) for path in others]
    made = CaseSpec(
        world_size=2,
        model=model,
        inputs=Dense(width=2),
        plan=Fsdp2Plan(units=(*units, Fsdp2Unit(path=modules[0], grouped=modules[1:]))),
        program=(Forward(), Backward()),
    )
    return msgspec.structs.replace(made, **changes)


def test_one_unit_manages_what_lies_in_all_of_its_modules() -> None:
    given = case("0", "2")
    check(given)
    a = anatomy(given)
    assert a.units == ("", "0")
    assert a.modules_of("0") == ("0", "2")
    assert {fqn for fqn, owner in a.owners.items() if owner == ""} == {"1.weight", "1.bias"}
    assert decode(encode(given)) == given
    assert features(given)["grouped"] == "on"
    assert unit_features(a, "0")["grouped"] == "on"
    assert unit_features(a, "")["grouped"] == "off"
    assert not stands_alone(a, "0")


def test_a_tie_of_two_of_its_modules_lies_within_the_unit() -> None:
    tied = case("0", "2", ties=(Tie(source="0.weight", target="2.weight"),))
    assert anatomy(tied).split_ties == ()
    assert features(tied)["tied"] == "within unit"


def test_fsdp_is_told_once_behind_the_checkpoints_in_all_modules() -> None:
    given = case("0", "2", checkpoints=(Checkpoint(path="2"), Checkpoint(path="0", side="around")))
    body = lower(anatomy(given)).procedures[1].body
    calls = [do.call for do in body if isinstance(do, Do) and isinstance(do.call, Call)]
    assert [str(call.function).rpartition(".")[2] for call in calls] == [
        "checkpoint_wrapper",
        "fully_shard",
        "checkpoint_wrapper",
        "fully_shard",
    ]
    assert calls[0].args == (Inside("model", "2"),)
    assert calls[1].args == (Items("list", (Inside("model", "0"), Inside("model", "2"))),)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (case("0", "1", others=("", "1")), "belongs to another unit"),
        (case("0", "0"), "belongs to another unit, or is this one"),
        (case("0", "3"), "the model has no module '3'"),
        (case("2", "1"), "in the model's order"),
        (case("0", "1", others=()), "have to lie in another"),
        (case("0.0", "1", model=Sequential(children=(THREE, LAYER))), "are no siblings"),
        (
            case("branches.0", "branches.1", model=Switch(children=(LAYER, LAYER))),
            "not all of the modules are called",
        ),
        (
            case("body.0", "body.1", model=Repeat(body=THREE, no_grad="first_child")),
            "not all of the modules are called",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(given: CaseSpec, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        check(given)


def test_fewer_modules_are_plainer() -> None:
    given = case("0", "1", "2")
    plans = [s.case.plan for s in simpler(given) if is_sound(s.case) and s.case.model == THREE]
    left = {tuple(getattr(u, "grouped", ()) for u in plan.units if u.path == "0") for plan in plans}
    assert {((),), (("1",),), (("2",),)} <= left
    words = [s.words for s in simpler(given) if not any(u.grouped for u in s.case.plan.units)]
    assert "a list of modules" in words


@pytest.mark.parametrize(
    ("frozen", "quiet"),
    [
        ((), "off"),
        (("branches.1.weight",), "off"),
        (("branches.0",), "off"),
        (("branches.1",), "on"),
    ],
)
def test_a_unit_whose_last_output_requires_no_grad_is_seen(
    frozen: tuple[str, ...], quiet: str
) -> None:
    names = tuple(
        n for f in frozen for n in ((f,) if f.endswith("t") else (f"{f}.weight", f"{f}.bias"))
    )
    given = case("branches.0", "branches.1", model=BESIDE, frozen=names)
    assert unit_features(anatomy(given), "branches.0")["quiet_end"] == quiet


def test_each_forward_of_a_unit_that_is_called_again_has_an_end() -> None:
    """The second one has an input that requires grad, and so has its last output."""
    frozen = ("body.branches.1.weight", "body.branches.1.bias")
    for times in (1, 2):
        given = case(
            "body.branches.0",
            "body.branches.1",
            model=Repeat(body=Branches(children=BESIDE.children, merge="sum"), times=times),
            frozen=frozen,
        )
        assert unit_features(anatomy(given), "body.branches.0")["quiet_end"] == "on"


@pytest.mark.parametrize(
    ("path", "side", "reentrant", "quiet"),
    [
        ("2", "around", True, "on"),
        ("2", "inside", True, "off"),
        ("2", "around", False, "off"),
        ("1", "around", True, "off"),
        ("", "around", True, "off"),
    ],
)
def test_a_reentrant_checkpoint_hides_the_last_output(
    path: str, side: Any, reentrant: bool, quiet: str
) -> None:
    checkpoint = Checkpoint(path=path, kind="function", side=side, reentrant=reentrant)
    given = case("0", "1", "2", checkpoints=(checkpoint,))
    assert unit_features(anatomy(given), "0")["quiet_end"] == quiet


@pytest.mark.parametrize(("inner", "fit"), [("float16", True), (None, False)])
def test_a_unit_in_one_of_its_modules_gets_what_the_list_computes_in(inner: Any, fit: bool) -> None:
    model = Sequential(children=(LAYER, Sequential(children=(LAYER,))))
    half = Precision(param="float16", output="float32")
    listed = Fsdp2Unit(path="0", grouped=("1",), precision=half)
    told = None if inner is None else Precision(param=inner)
    units = (Fsdp2Unit(path=""), listed, Fsdp2Unit(path="1.0", precision=told))
    given = case("0", "1", model=model, plan=Fsdp2Plan(units=units))
    assert dtypes_fit(anatomy(given)) is fit


def test_a_case_without_it_is_written_as_ever() -> None:
    plain = case("0")
    assert all("grouped" not in unit for unit in json.loads(encode(plain))["plan"]["units"])


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        (case("branches.0", "branches.1", model=Branches(children=(LAYER, Idle()))), "on"),
        (
            case("branches.0", "branches.1", model=Branches(children=(LAYER, Idle()), side=True)),
            "on",
        ),
        (case("branches.0", "branches.1", model=Branches(children=(Idle(), LAYER))), "off"),
        (case("branches.1", model=Branches(children=(LAYER, Idle()))), "off"),
        # It is given the output of the other one.
        (case("0", "1", model=Sequential(children=(LAYER, Idle()))), "off"),
    ],
)
def test_the_last_module_may_return_what_others_were_given(given: CaseSpec, shared: str) -> None:
    a = anatomy(given)
    assert unit_features(a, a.units[-1])["shared_end"] == shared


@pytest.mark.parametrize(
    ("reshard", "program", "freed"),
    [
        (None, (Forward(), Backward()), "on"),
        (True, (Forward(), Backward()), "on"),
        (2, (Forward(), Backward()), "on"),
        (False, (Forward(), Backward()), "off"),
        (1, (Forward(), Backward()), "off"),
        (False, (Forward(), Reshard(unit="branches.0"), Backward()), "on"),
        (False, (Forward(), Reshard(unit=""), Backward()), "off"),
        # Nothing is gathered again before a forward comes to the unit.
        (False, (Forward(), Backward(), Reshard(unit="branches.0")), "off"),
        # The backward of the second call shards it before that of the first.
        (False, (Forward(), Forward(), Backward()), "on"),
        (False, (Forward(), Backward(), Forward(), Backward()), "off"),
        # The first of both shards it.
        (False, (Forward(), Backward(again=True)), "on"),
        (False, (Forward(sync=False), Backward(again=True), Forward(), Backward()), "on"),
    ],
)
def test_backward_has_to_gather_what_was_freed(
    reshard: bool | int | None, program: tuple[Op, ...], freed: str
) -> None:
    given = case("branches.0", "branches.1", model=BESIDE, program=program)
    root, unit = given.plan.units
    unit = msgspec.structs.replace(unit, reshard_after_forward=reshard)
    given = msgspec.structs.replace(given, plan=Fsdp2Plan(units=(root, unit)))  # type: ignore[arg-type]
    a = anatomy(given)
    check(given)
    assert unit_features(a, "branches.0")["freed"] == freed


@pytest.mark.parametrize(("sync", "freed"), [(False, "off"), (True, "on")])
def test_a_unit_that_stays_whole_after_backward_is_there_for_a_second(
    sync: bool, freed: str
) -> None:
    program = (Forward(sync=sync), Backward(again=True), Forward(sync=not sync), Backward())
    given = case(
        "branches.0",
        "branches.1",
        model=BESIDE,
        program=program,
        micro_batches=MicroBatches(keep_whole=True),
    )
    root, unit = given.plan.units
    unit = msgspec.structs.replace(unit, reshard_after_forward=False)
    given = msgspec.structs.replace(given, plan=Fsdp2Plan(units=(root, unit)))  # type: ignore[arg-type]
    a = anatomy(given)
    assert unit_features(a, "branches.0")["freed"] == freed


@pytest.mark.parametrize(
    ("modules", "scope"), [(("0", "1"), "part"), (("0", "1", "2"), "part"), (("1",), "whole")]
)
def test_a_reentrant_checkpoint_of_one_module_is_one_of_a_part(
    modules: tuple[str, ...], scope: str
) -> None:
    """Also where a unit within that module manages all that lies in it."""
    model = Sequential(children=(LAYER, Sequential(children=(LAYER,)), LAYER))
    given = case(
        *modules,
        model=model,
        others=("", "1.0"),
        checkpoints=(Checkpoint(path="1", kind="function", reentrant=True),),
    )
    found = unit_features(anatomy(given), modules[0])["reentrant"]
    assert found == scope


@pytest.mark.parametrize(
    ("path", "options", "freed"),
    [
        ("1", {"reentrant": True, "kind": "function_offload"}, "on"),
        ("0", {"reentrant": True, "kind": "function_offload"}, "off"),
        ("1", {"kind": "function_offload"}, "off"),
        ("1", {"reentrant": True}, "off"),
    ],
)
def test_the_backward_within_a_reentrant_checkpoint_around_the_last_module_frees_a_unit(
    path: str, options: dict[str, Any], freed: str
) -> None:
    """Seen with gloo as a segmentation fault, on two H200 as an illegal memory access."""
    unit = Fsdp2Unit(path="0", grouped=("1",), reshard_after_forward=False)
    given = make(
        Fsdp2Plan(units=(Fsdp2Unit(path=""), unit)),
        model=THREE,
        inputs=Dense(width=5, requires_grad=True),
        checkpoints=(Checkpoint(path=path, **options),),
        program=(Forward(), Backward()),
    )
    check(given)
    assert unit_features(anatomy(given), "0")["freed"] == freed
