"""What self-attention by PyTorch's own module says and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Dropout,
    Embedding,
    EncoderLayer,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Node,
    Op,
    Plan,
    Sequential,
    Tokens,
    Transformer,
    Variant,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.modules import Attention, ConvNorm, Repeat
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import same_arithmetic
from fsdpfuzz.reduce.tree import smaller_models
from tests.unit.case.test_units import fsdp1, fsdp2, make

ONCE: tuple[Op, ...] = (Forward(), Backward())
MODEL = Sequential(children=(Linear(out=4), Attention(heads=2), Linear(out=2)))
AT = "1.inner"


def case(plan: Plan | None = None, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {"model": MODEL, "program": ONCE}
    values["inputs"] = Dense(width=3, length=3, requires_grad=True)
    return make(plan or fsdp2("", AT), **values | changes)


def policy(wrap: str, **changes: Any) -> Fsdp1Plan:
    values: dict[str, Any] = {"units": (Fsdp1Unit(path=""),), "wrap": wrap}
    return Fsdp1Plan(**values | changes)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Sequential(children=(Linear(out=3), Attention(heads=2))), "not divisible by heads=2"),
        (Sequential(children=(Attention(), Embedding(rows=3, out=4))), "cannot take tokens"),
        (Transformer(rows=3, width=3), "width 3 is not divisible by heads=2"),
    ],
)
def test_what_it_cannot_take_is_refused(model: Sequential | Transformer, says: str) -> None:
    tokens = isinstance(model, Transformer) or isinstance(model.children[0], Attention)
    with pytest.raises(CaseError, match=says):
        check(case(fsdp2(""), model=model, **{"inputs": Tokens()} if tokens else {}))


def test_units_and_reentrant_wrappers_go_with_it_and_nothing_that_takes_it_apart() -> None:
    for plan in (fsdp2("", AT), fsdp1(AT, ""), policy("custom_policy")):
        check(case(plan))
    classes = policy("module_classes", classes=("multihead_attention",))
    assert anatomy(case(classes)).units == ("", AT)
    check(case(checkpoints=(Checkpoint(path=AT, reentrant=True),)))
    for wrong, says in (
        # By keyword it is told whether to put out weights.
        (
            case(checkpoints=(Checkpoint(path=AT, kind="function", reentrant=True),)),
            "keyword arguments",
        ),
        (case(policy("module_classes", classes=("linear",))), "called as a whole"),
        # PyTorch's layers have one of their own.
        (case(classes, model=Sequential(children=(EncoderLayer(),))), "called as a whole"),
        (case(program=(Forward(target=AT, grad=False), *ONCE)), AT),
        (case(fsdp2("", "1.inner.out_proj")), "out_proj"),
    ):
        with pytest.raises(CaseError, match=says):
            check(wrong)


def test_a_policy_by_size_passes_over_it_and_looks_into_it_where_it_is_no_leaf() -> None:
    assert anatomy(case(policy("size_policy", min_num_params=12))).units == ("", "0", "1")
    other = policy("size_policy", min_num_params=12, leaves=("attention",))
    assert anatomy(case(other)).units == ("", "0")
    apart = policy("size_policy", min_num_params=12, leaves=("residual",))
    with pytest.raises(CaseError, match=r"makes a unit of '1\.inner\.out_proj'"):
        check(case(apart))


def test_its_features() -> None:
    assert features(case())["attention"] == "full"
    for mask in ("causal", "padding"):
        assert features(case(fsdp2(""), model=Attention(mask=mask)))["attention"] == "masked"
    both = Sequential(children=(Attention(), Attention(mask="causal")))
    assert features(case(fsdp2(""), model=both))["attention"] == "masked"
    assert features(case(fsdp2(""), model=Linear(out=2)))["attention"] == "no"
    a = anatomy(case())
    assert [unit_features(a, path)["attends"] for path in a.units] == ["off", "on"]


def test_it_is_kept_as_it_is_and_made_plainer() -> None:
    node = Attention(heads=2, mask="padding", weights=True, batch_first=False)
    given = case(fsdp2(""), model=Sequential(children=(Linear(out=4), node)))
    check(given)
    assert decode(encode(given)) == given
    assert node.words() == ["2 heads", "padding", "weights", "batch second"]
    assert Attention(bias=False).words() == ["1 head", "no bias"]
    found = [found.model for found in smaller_models(given)]
    for plainer in node.simpler():
        assert Sequential(children=(Linear(out=4), plainer)) in found
    assert list(Attention(bias=False).simpler()) == []


def test_recomputing_or_freezing_it_need_not_round_alike() -> None:
    placed = Variant(name="other", checkpoints=(Checkpoint(path="1"),))
    frozen = Variant(name="other", frozen=("0.weight",))
    plain = Sequential(children=(Linear(out=4), Linear(out=2)))
    for variant in (placed, frozen):
        assert not same_arithmetic(anatomy(case()), variant)
        assert same_arithmetic(anatomy(case(fsdp2(""), model=plain)), variant)


@pytest.mark.parametrize(
    ("placed", "fine"),
    [
        ((Checkpoint(path="1"), Checkpoint(path=AT)), False),
        ((Checkpoint(path="", kind="offload"), Checkpoint(path=AT)), False),
        ((Checkpoint(path=AT, kind="function_offload"),), False),
        ((Checkpoint(path=AT, kind="offload"), Checkpoint(path="")), True),
        ((Checkpoint(path="", reentrant=True), Checkpoint(path=AT)), True),
        ((Checkpoint(path=""), Checkpoint(path=AT, reentrant=True)), True),
        ((Checkpoint(path=""), Checkpoint(path="1")), True),
    ],
)
def test_torch_recomputes_it_within_hooks_with_other_arguments(
    placed: tuple[Checkpoint, ...], fine: bool
) -> None:
    given = case(checkpoints=placed)
    assert is_sound(given) is fine
    if not fine:
        with pytest.raises(CaseError, match="put it on the module around"):
            check(given)


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ((Checkpoint(path="1", kind="function_offload"),), "on"),
        ((Checkpoint(path="1", kind="function_offload"), Checkpoint(path="0.inner")), "on"),
        ((Checkpoint(path="1", kind="function_offload", reentrant=True),), "off"),
        ((Checkpoint(path="1", kind="function"),), "off"),
        ((Checkpoint(path="1", kind="offload"),), "off"),
        ((Checkpoint(path="", kind="offload"), Checkpoint(path="1")), "on"),
        ((Checkpoint(path="", kind="offload"), Checkpoint(path="0")), "off"),
        ((Checkpoint(path="0", kind="function_offload"),), "off"),
    ],
)
def test_what_follows_attention_is_recomputed_from_inputs_on_the_cpu(
    checkpoints: tuple[Checkpoint, ...], expected: str
) -> None:
    model = Sequential(children=(Attention(), Linear(out=2)))
    assert features(case(model=model, checkpoints=checkpoints))["offloaded_input"] == expected


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ((Checkpoint(path="1", kind="function_offload"),), "on"),
        ((Checkpoint(path="1", kind="function_offload", reentrant=True),), "on"),
        ((Checkpoint(path="1.1", kind="function_offload", reentrant=True),), "on"),
        ((Checkpoint(path="1.0", kind="function_offload"),), "off"),
        ((Checkpoint(path="1", kind="function"),), "off"),
        ((Checkpoint(path="1", kind="offload"),), "off"),
    ],
)
def test_dropout_after_attention_is_recomputed_from_inputs_on_the_cpu(
    checkpoints: tuple[Checkpoint, ...], expected: str
) -> None:
    behind = Sequential(children=(Linear(out=2), Dropout()))
    model = Sequential(children=(Attention(), behind))
    given = case(model=model, checkpoints=checkpoints)
    assert features(given)["offloaded_dropout"] == expected


def test_it_spoils_the_gradients_of_what_was_called_before_its_end() -> None:
    behind = Sequential(children=(Dropout(), Linear(out=2)))
    model = Sequential(children=(Linear(out=2), Attention(), behind, Linear(out=1)))
    moved = (Checkpoint(path="2", kind="function_offload", reentrant=True),)
    a = anatomy(case(model=model, checkpoints=moved))
    told = {p.fqn: parameter_features(a, p.fqn)["offloaded_dropout"] for p in a.parameters}
    assert {fqn.partition(".")[0] for fqn in told if told[fqn] == "on"} == {"0", "1", "2"}
    assert {fqn.partition(".")[0] for fqn in told if told[fqn] == "off"} == {"3"}


def test_dropout_before_attention_keeps_its_strides() -> None:
    model = Sequential(children=(Dropout(), Attention()))
    moved = (Checkpoint(path="0", kind="function_offload", reentrant=True),)
    assert features(case(model=model, checkpoints=moved))["offloaded_dropout"] == "off"


@pytest.mark.parametrize(("times", "expected"), [(1, "off"), (2, "on")])
def test_what_is_called_again_follows_the_attention_after_it(times: int, expected: str) -> None:
    body = Sequential(children=(Linear(out=3), Attention()))
    model = Sequential(children=(Repeat(body=body, times=times),))
    moved = (Checkpoint(path="0.body.0", kind="function_offload"),)
    given = case(fsdp2(""), model=model, checkpoints=moved)
    assert features(given)["offloaded_input"] == expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Attention(batch_first=False), "on"),
        (Attention(), "off"),
        (Sequential(children=(Linear(out=2), ConvNorm())), "on"),
        (Linear(out=2), "off"),
    ],
)
def test_what_is_handed_a_view_of_the_input(model: Node, expected: str) -> None:
    assert features(case(fsdp2(""), model=model))["handed_view"] == expected
