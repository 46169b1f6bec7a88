"""What a case must not ask of state dicts, targets and probes."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Branches,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Mode,
    Node,
    Op,
    Plan,
    Precision,
    Sequential,
    StateDict,
    Step,
    Tokens,
    Transformer,
    Variant,
    anatomy,
    calls_by_the_book,
    check,
    features,
    unit_features,
)
from fsdpfuzz.case.modules.outputs import Outputs
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_units import fsdp1, fsdp2

FSDP1 = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
CASE = CaseSpec(
    world_size=2,
    model=Sequential(children=(Linear(out=3), Linear(out=2))),
    inputs=Dense(width=3),
    plan=FSDP2,
    program=(Forward(), Backward(), Step()),
)


def refused(**changes: object) -> str:
    with pytest.raises(CaseError) as caught:
        check(msgspec.structs.replace(CASE, **changes))
    return str(caught.value)


def test_local_state_is_fsdp1s() -> None:
    local = (StateDict(form="local"),)
    check(msgspec.structs.replace(CASE, plan=FSDP1, program=local))
    assert "$.program[0].form" in refused(program=local)
    variants = (Variant(name="other", plan=FSDP2),)
    said = refused(plan=FSDP1, program=local, twins=variants)
    assert "fsdp2 has no form='local'" in said
    assert "$.twins[0].program[0].form" in said


def test_only_a_full_state_is_for_one_rank() -> None:
    program = (StateDict(form="sharded", rank0_only=True),)
    assert "$.program[0].rank0_only" in refused(program=program)


def test_a_target_exists_and_takes_the_inputs() -> None:
    check(msgspec.structs.replace(CASE, program=(Forward(target="1"), Backward())))
    assert "no module '7'" in refused(program=(Forward(target="7"),))
    narrow = Sequential(children=(Linear(out=5), Linear(out=2)))
    assert "takes width 5" in refused(model=narrow, program=(Forward(target="1"),))


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (Outputs(body=Linear(out=3)), "inner"),
        (Branches(children=(Linear(out=2), Linear(out=2)), side=True), "branches.0"),
        (Transformer(width=4, rows=4), "transformer.decoder.layers.0"),
    ],
)
def test_a_target_takes_and_returns_one_tensor(model: Node, target: str) -> None:
    tokens = Tokens() if isinstance(model, Transformer) else CASE.inputs
    text = refused(model=model, inputs=tokens, program=(Forward(target=target),))
    assert "more than one tensor" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": FSDP1},
        {"plan": Fsdp2Plan(units=(Fsdp2Unit(path="0"),))},
        {"twins": (Variant(name="other", plan=FSDP2),)},
        {"checkpoints": (Checkpoint(path="", side="around"),)},
        {"program": (Mode(train=False), Forward(), Backward())},
        {"program": (Forward(grad=False),)},
    ],
)
def test_the_tracker_wants_a_plain_fsdp2_run(changes: dict[str, object]) -> None:
    check(msgspec.structs.replace(CASE, probes=("mem_tracker",)))
    assert "mem_tracker" in refused(probes=("mem_tracker",), **changes)


@pytest.mark.parametrize(
    ("variants", "path"),
    [
        ((Variant(name="case"),), "$.twins[0].name"),
        ((Variant(name="a"), Variant(name="a")), "$.twins[1].name"),
        ((Variant(name="a", held_out=("7.weight",)),), "$.twins[0].held_out[0]"),
        ((Variant(name="a", checkpoints=(Checkpoint(path="7"),)),), "$.twins[0].checkpoints[0]"),
    ],
)
def test_a_variant_has_a_name_of_its_own_and_is_a_sound_case(
    variants: tuple[Variant, ...], path: str
) -> None:
    assert path in refused(twins=variants)


def test_classes_make_no_units_of_ignored_modules() -> None:
    plan = Fsdp1Plan(
        units=(Fsdp1Unit(path="", ignored=("0",)),), wrap="module_classes", classes=("linear",)
    )
    assert anatomy(msgspec.structs.replace(CASE, plan=plan)).units == ("", "1")


def test_features_name_state_dicts_and_targets() -> None:
    program = (StateDict(cpu_offload=True), StateDict(form="sharded"), Forward(target="1"))
    named = features(msgspec.structs.replace(CASE, program=program))
    assert (named["state_dict"], named["state_offload"], named["state_rank0"]) == (
        "several",
        "on",
        "off",
    )
    assert named["non_root_forward"] == "on"
    assert features(CASE)["state_dict"] == "no"


LOW = Precision(param="bfloat16")
UNCAST = Precision(param="bfloat16", cast_inputs=False)
UNITS = tuple(Fsdp2Unit(path=path, precision=LOW) for path in ("", "1"))
INNER = Fsdp2Unit(path="1.0", precision=UNCAST)
LAST = (Forward(), Backward(), Forward(grad=False, target="1"))


@pytest.mark.parametrize(
    ("plan", "program", "by_the_book"),
    [
        (fsdp2("", "1"), LAST, True),
        (fsdp2("", "1.0", "1.1"), LAST, True),
        (fsdp2("", "1.0"), LAST, False),
        (fsdp2(""), LAST, False),
        (fsdp2("1"), LAST, True),
        (fsdp2("", "1"), LAST[::-1], False),
        (fsdp2("", "1"), LAST[-1:], True),
        (Fsdp2Plan(units=UNITS), LAST, True),
        (Fsdp2Plan(units=(UNITS[0], Fsdp2Unit(path="1", precision=UNCAST))), LAST, False),
        # The unit around it casts what it is given.
        (Fsdp2Plan(units=(*UNITS, INNER)), LAST, True),
        (fsdp1("", "1", precision=LOW), LAST, False),
        (fsdp1("1", precision=LOW), LAST, True),
        (fsdp1("", "1", precision=Precision(reduce="bfloat16")), LAST, True),
    ],
)
def test_what_may_be_called_by_itself(
    plan: Plan, program: tuple[Op, ...], by_the_book: bool
) -> None:
    """Whole units after the root, and where nobody has to cast what the root casts."""
    model = Sequential(
        children=(Linear(out=5), Sequential(children=(Linear(out=5), Linear(out=5))))
    )
    case = CaseSpec(world_size=2, model=model, inputs=Dense(width=5), plan=plan, program=program)
    assert calls_by_the_book(anatomy(case)) is by_the_book


@pytest.mark.parametrize("form", ["tuple", "dict", "dataclass"])
def test_what_a_unit_returns(form: Literal["tuple", "dict", "dataclass"]) -> None:
    a = anatomy(
        CaseSpec(
            world_size=2,
            model=Outputs(body=Linear(out=2), form=form),
            inputs=Dense(width=2),
            plan=fsdp2("", "inner", "inner.body"),
            program=(Forward(), Backward()),
        )
    )
    found = {path: unit_features(a, path)["returns"] for path in a.units}
    assert found == {"": "tensor", "inner": form, "inner.body": "tensor"}
