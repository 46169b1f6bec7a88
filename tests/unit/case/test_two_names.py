"""A module with two names: its parameters, what is known of the second one, the features."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Checkpoint,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Sequential,
    StateDict,
    anatomy,
    check,
    features,
    parameter_features,
)
from fsdpfuzz.case.modules import TwoNames
from fsdpfuzz.case.operations.state_dict import left_out
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect.state_dict import state_keys
from fsdpfuzz.verdict import Finding
from tests.unit.known.samples import shipped

FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
UNITS = (Fsdp1Unit(path=""),)


def case(plan: Plan = FSDP2, *program: StateDict, frozen: tuple[str, ...] = ()) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), TwoNames())),
        inputs=Dense(width=3),
        plan=plan,
        frozen=frozen,
        program=program or (StateDict(),),
    )


def test_its_parameters_by_either_name() -> None:
    a = anatomy(case())
    assert [p.fqn for p in a.parameters][2:] == ["1.layer.weight", "1.layer.bias"]
    assert a.brought_ties == {
        "1.again.weight": "1.layer.weight",
        "1.again.bias": "1.layer.bias",
    }
    assert parameter_features(a, "1.layer.weight")["tied"] == "within unit"
    assert features(a.case)["two_names"] == "on"
    assert features(msgspec.structs.replace(a.case, model=Linear(out=1)))["two_names"] == "off"


def test_a_flat_parameter_takes_both_names() -> None:
    given = case(Fsdp1Plan(units=UNITS), StateDict(form="local"))
    a = anatomy(given)
    (op,) = given.program
    assert isinstance(op, StateDict)
    plain = {*a.by_fqn, *a.brought_ties}
    assert state_keys(a, plain, op, absent=False) == {"_flat_param"}


def test_what_is_left_out_is_so_by_both_names() -> None:
    op = StateDict(ignore_frozen=True)
    a = anatomy(case(FSDP2, op, frozen=("1.layer.weight",)))
    assert left_out(a, 0) == {"1.layer.weight", "1.again.weight"}
    # A finding names the second one, of which no features are told.
    finding = Finding(
        invariant="state_dict_keys",
        symptom="mismatch",
        api="fsdp2",
        kind="unexpected",
        op=0,
        operation="state_dict",
        name="1.again.weight",
        world_size=2,
    )
    known = shipped()
    found = known.match(a.case, finding, torch="2.13.0", backend="gloo")
    assert found == "fsdp2-tied-frozen-not-ignored"
    other = msgspec.structs.replace(finding, name="0.weight")
    assert known.match(a.case, other, torch="2.13.0", backend="gloo") is None


@pytest.mark.parametrize(
    "change",
    [
        {"plan": Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1.layer")))},
        {"plan": Fsdp1Plan(units=UNITS, wrap="module_classes", classes=("linear",))},
        {"checkpoints": (Checkpoint(path="1.layer"),)},
    ],
)
def test_no_unit_and_no_checkpoint_stands_on_the_layer(change: dict[str, object]) -> None:
    with pytest.raises(CaseError, match=r"'1\.layer'|units within it"):
        check(msgspec.structs.replace(case(), **change))


def test_a_plainer_one_has_no_bias() -> None:
    assert list(TwoNames().simpler()) == [TwoNames(bias=False)]
    assert list(TwoNames(bias=False).simpler()) == []
