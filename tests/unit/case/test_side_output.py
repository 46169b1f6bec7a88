"""What is kept for the loss beside an output: what it says and refuses, how its layers lie."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Activation,
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
    Op,
    Plan,
    Rebuild,
    Sequential,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
    unit_features,
)
from fsdpfuzz.case.modules import (
    Branches,
    Experts,
    Idle,
    InPlace,
    Keyed,
    LayerDrop,
    Method,
    Node,
    Outputs,
    Repeat,
    Residual,
    SideOutput,
    Switch,
)
from fsdpfuzz.case.operations.interrupt import Interrupt
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.tree import smaller_models
from tests.unit.case.test_units import fsdp1, fsdp2, make

ONCE: tuple[Op, ...] = (Forward(), Backward())
BODY = Linear(out=3)
ON_OUTPUT = SideOutput(body=BODY, on="output")
ON_INPUT = SideOutput(body=BODY, on="input")
NOTHING = SideOutput(body=Activation(), on="input")
BEHIND = Sequential(children=(BODY, SideOutput(body=Idle(), on="input")))
PLAIN = SideOutput(body=BODY)
INSIDE, AROUND = Checkpoint(path="0"), Checkpoint(path="0", side="around")
AROUND_IT = (
    (Repeat(body=ON_OUTPUT), "first"),
    (Repeat(body=ON_OUTPUT, no_grad="body"), "no"),
    (Keyed(body=ON_OUTPUT), "first"),
    (Keyed(body=ON_OUTPUT, added=True), "no"),
    (Outputs(body=ON_OUTPUT), "first"),
    (Outputs(body=ON_OUTPUT, both=True), "no"),
    (Method(body=ON_OUTPUT), "first"),
    (Switch(children=(ON_OUTPUT, BODY)), "first"),
    (LayerDrop(children=(ON_OUTPUT, BODY)), "first"),
    (Sequential(children=(BODY, ON_OUTPUT)), "first"),
    (Sequential(children=(ON_OUTPUT, BODY)), "no"),
    (Sequential(children=(ON_OUTPUT, Idle(), Idle())), "first"),
    (Sequential(children=(ON_OUTPUT, BODY, Idle())), "no"),
    (Residual(body=ON_OUTPUT), "no"),
)
"""Modules around it, and how its layer then lies to what they put out."""
RECOMPUTED: tuple[tuple[str, Node, str], ...] = (
    ("body", Residual(body=PLAIN), "recomputed"),
    ("branches.1", Branches(children=(BODY, PLAIN), merge="sum"), "recomputed"),
    ("branches.1", Branches(children=(BODY, PLAIN), merge="stack", side=True), "recomputed"),
    ("branches.0", Branches(children=(PLAIN, BODY), merge="sum"), "no"),
    ("1.body", Sequential(children=(BODY, Residual(body=PLAIN))), "recomputed"),
    ("0.body", Sequential(children=(Residual(body=PLAIN), BODY)), "no"),
)
"""Modules that a checkpoint recomputes, and how what is kept in one lies to what its unit does."""
LEFT_ALONE = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", ignored=("0.layer",))))
FROZEN = ("0.body.weight", "0.body.bias")


def case(plan: Plan | None = None, node: SideOutput = ON_OUTPUT, **changes: Any) -> CaseSpec:
    model = Sequential(children=(node, Linear(out=2)))
    given = {"model": model, "inputs": Dense(width=3, batch=2), "program": ONCE}
    return make(plan or fsdp2(""), **{**given, **changes})


def test_it_is_kept_as_it_is_and_made_plainer() -> None:
    given = case()
    check(given)
    assert decode(encode(given)) == given
    nodes = (ON_OUTPUT, ON_INPUT, SideOutput(body=BODY))
    assert [node.words() for node in nodes] == [["layer on output"], ["layer on input"], []]
    told = [features(case(node=node))["side_output"] for node in nodes]
    assert told == ["output", "input", "plain"]
    assert features(case(model=BODY))["side_output"] == "no"
    found = [found.model for found in smaller_models(given)]
    assert Sequential(children=(SideOutput(body=BODY), Linear(out=2))) in found
    assert Sequential(children=(BODY, Linear(out=2))) in found


def test_the_loss_takes_it_in_where_there_is_any() -> None:
    def steps(given: CaseSpec) -> str:
        return str(lower(anatomy(given)))

    for name in ("forget", "with_kept"):
        assert f"steps.modules.side_output.{name}" in steps(case())
        assert f"steps.modules.side_output.{name}" not in steps(case(model=BODY))


def test_a_forward_begins_without_what_an_exception_left() -> None:
    given = case(fsdp2("", "0"), program=(Interrupt(module="1"), *ONCE))
    check(given)
    text = str(lower(anatomy(given)))
    assert text.index("steps.interrupt.interrupted") < text.index("steps.modules.side_output.forg")


@pytest.mark.parametrize("path", ["", "0"])
def test_what_is_recomputed_with_reentrance_keeps_nothing(path: str) -> None:
    data = Dense(width=3, batch=2, requires_grad=True)
    check(case(inputs=data, checkpoints=(Checkpoint(path=path),)))
    check(case(inputs=data, checkpoints=(Checkpoint(path="0.body", reentrant=True),)))
    with pytest.raises(CaseError, match="keeps for the loss"):
        check(case(inputs=data, checkpoints=(Checkpoint(path=path, reentrant=True),)))


def test_an_expert_may_have_no_rows_of_which_there_were_a_mean() -> None:
    check(case(model=Experts(children=(BODY, BODY))))
    with pytest.raises(CaseError, match="side_output"):
        check(case(model=Experts(children=(BODY, SideOutput(body=BODY)))))


def test_it_puts_out_what_its_body_does() -> None:
    assert SideOutput(body=Idle()).returns_its_input()
    assert not ON_OUTPUT.returns_its_input()
    # Of three dimensions a linear layer without a bias puts out a view.
    inner = SideOutput(body=Linear(out=3, bias=False))
    data = Dense(width=3, batch=2, length=2)
    view = features(case(model=InPlace(body=inner), inputs=data))["in_place"]
    plain = features(case(model=InPlace(body=inner.body), inputs=data))["in_place"]
    assert view == plain


@pytest.mark.parametrize(
    ("plan", "node", "changes", "expected"),
    [
        (fsdp2(""), ON_OUTPUT, {}, {"": "no"}),
        (fsdp2("", "0"), SideOutput(body=BODY), {}, {"": "no", "0": "no"}),
        (fsdp2("", "0"), ON_INPUT, {}, {"": "no", "0": "no"}),
        (fsdp2("", "0"), ON_OUTPUT, {}, {"": "no", "0": "first"}),
        (fsdp1("0", ""), ON_OUTPUT, {}, {"": "no", "0": "first"}),
        (fsdp2("", "0", "0.layer"), ON_OUTPUT, {}, {"": "no", "0": "apart", "0.layer": "layer"}),
        (fsdp2("", "0.body"), ON_OUTPUT, {}, {"": "no", "0.body": "no"}),
        # The layer is in no unit.
        (LEFT_ALONE, ON_OUTPUT, {}, {"": "no", "0": "apart"}),
        (fsdp2("", "0"), PLAIN, {"checkpoints": (INSIDE,)}, {"0": "recomputed"}),
        (fsdp2("", "0"), ON_OUTPUT, {"checkpoints": (INSIDE,)}, {"0": "recomputed"}),
        (fsdp2("", "0"), ON_INPUT, {"checkpoints": (INSIDE,)}, {"0": "no"}),
        (fsdp2("", "0"), PLAIN, {"checkpoints": (AROUND,)}, {"0": "no"}),
        (fsdp1("0", ""), PLAIN, {"checkpoints": (AROUND,)}, {"0": "recomputed"}),
        (fsdp2(""), PLAIN, {"checkpoints": (INSIDE,)}, {"": "no"}),
        *(
            (
                fsdp1("", path),
                PLAIN,
                {"model": around, "checkpoints": (Checkpoint(path=""),)},
                {"": "no", path: how},
            )
            for path, around, how in RECOMPUTED
        ),
        (fsdp2("", "0"), PLAIN, {"checkpoints": (Checkpoint(path="0.body"),)}, {"0": "no"}),
        # The root puts out something that requires grad: its callback reduces what is left.
        (fsdp2("", "0"), ON_INPUT, {"frozen": FROZEN}, {"": "no", "0": "no"}),
        (fsdp2("", "0"), ON_INPUT, {"frozen": (*FROZEN, "1.weight", "1.bias")}, {"0": "alone"}),
        (fsdp2(""), ON_OUTPUT, {"frozen": (*FROZEN, "1.weight", "1.bias")}, {"": "alone"}),
        (
            fsdp2("0"),
            ON_INPUT,
            {"frozen": FROZEN, "inputs": Dense(width=3, requires_grad=True)},
            {"0": "no"},
        ),
        # A root of its own, beside which another one does not count.
        (fsdp2("0", "1"), ON_INPUT, {"frozen": FROZEN}, {"0": "alone", "1": "no"}),
        # Each unit of fsdp1 wants to be told by what it puts out itself.
        (fsdp1("", "0"), NOTHING, {}, {"0": "alone"}),
        (fsdp2("", "0"), NOTHING, {}, {"0": "no"}),
        # The layer's own unit is told, and the root that ends backward is not.
        (
            fsdp1("", "0", "0.layer"),
            ON_OUTPUT,
            {"frozen": (*FROZEN, "1.weight", "1.bias")},
            {"": "silent", "0": "apart", "0.layer": "below"},
        ),
        (
            fsdp1("", "0.layer"),
            ON_INPUT,
            {"frozen": (*FROZEN, "1.weight", "1.bias")},
            {"": "silent", "0.layer": "below"},
        ),
        (fsdp1("", "0.layer"), ON_INPUT, {"frozen": FROZEN}, {"": "no"}),
        # No unit manages the layer: nobody is told that a backward has begun.
        (
            fsdp1("", ignored=("0",)),
            ON_INPUT,
            {"frozen": (*FROZEN, "1.weight", "1.bias")},
            {"": "silent"},
        ),
        (fsdp1("", ignored=("0",)), ON_INPUT, {"frozen": FROZEN}, {"": "no"}),
        (fsdp1("", "0", "0.layer"), ON_OUTPUT, {}, {"0": "apart", "0.layer": "layer"}),
        # What goes in comes out.
        (fsdp2("", "1"), ON_INPUT, {"model": BEHIND}, {"": "apart", "1": "first"}),
        (
            fsdp1("", "1", "1.layer"),
            ON_INPUT,
            {"model": BEHIND},
            {"": "apart", "1": "apart", "1.layer": "layer"},
        ),
        # What is frozen lies in one flat parameter with what is trained.
        (
            Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
            ON_INPUT,
            {"frozen": FROZEN},
            {"": "no"},
        ),
        *(
            (fsdp2("", "0"), ON_OUTPUT, {"model": Sequential(children=(around, BODY))}, {"0": how})
            for around, how in AROUND_IT
        ),
    ],
)
def test_how_layers_lie_to_what_units_put_out(
    plan: Plan, node: SideOutput, changes: dict[str, Any], expected: dict[str, str]
) -> None:
    given = case(plan, node, **changes)
    a = anatomy(given)
    found = {path: unit_features(a, path)["side_loss"] for path in a.units}
    assert found == {path: expected.get(path, "no") for path in a.units}
    order = ("no", "silent", "layer", "apart", "first", "recomputed", "below", "alone")
    assert features(given)["side_loss"] == max(expected.values(), key=order.index)


def test_it_is_told_of_the_plan_of_a_rebuild_too() -> None:
    program = (*ONCE, Rebuild(plan=fsdp2("", "0")), *ONCE)
    assert features(case(fsdp2("", "1"), program=program))["side_loss"] == "first"
