"""What a case must not ask of state dicts, targets and probes."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.errors import CaseError
from fsdpfuzz.spec import (
    Backward,
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
    Sequential,
    StateDict,
    Step,
    Twin,
    check,
    features,
    planned_units,
)

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
    twins = (Twin(name="other", plan=FSDP2),)
    assert "fsdp2 has no form='local'" in refused(plan=FSDP1, program=local, twins=twins)


def test_only_a_full_state_is_for_one_rank() -> None:
    program = (StateDict(form="sharded", rank0_only=True),)
    assert "$.program[0].rank0_only" in refused(program=program)


def test_a_target_exists_and_takes_the_inputs() -> None:
    check(msgspec.structs.replace(CASE, program=(Forward(target="1"), Backward())))
    assert "no module '7'" in refused(program=(Forward(target="7"),))
    narrow = Sequential(children=(Linear(out=5), Linear(out=2)))
    assert "takes width 5" in refused(model=narrow, program=(Forward(target="1"),))


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": FSDP1},
        {"plan": Fsdp2Plan(units=(Fsdp2Unit(path="0"),))},
        {"twins": (Twin(name="other", plan=FSDP2),)},
        {"checkpoints": (Checkpoint(path="", side="around"),)},
        {"program": (Mode(train=False), Forward(), Backward())},
        {"program": (Forward(grad=False),)},
    ],
)
def test_the_tracker_wants_a_plain_fsdp2_run(changes: dict[str, object]) -> None:
    check(msgspec.structs.replace(CASE, probes=("mem_tracker",)))
    assert "mem_tracker" in refused(probes=("mem_tracker",), **changes)


def test_classes_make_no_units_of_ignored_modules() -> None:
    plan = Fsdp1Plan(
        units=(Fsdp1Unit(path="", ignored=("0",)),), wrap="module_classes", classes=("linear",)
    )
    assert planned_units(msgspec.structs.replace(CASE, plan=plan)) == ("", "1")


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
