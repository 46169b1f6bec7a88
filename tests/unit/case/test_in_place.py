"""What is changed in place: what it must come from, and which units put out a changed view."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    Activation,
    CaseSpec,
    Checkpoint,
    Dense,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Node,
    Sequential,
    Tokens,
    check,
    features,
)
from fsdpfuzz.case.anatomy import anatomy
from fsdpfuzz.case.modules import Embedding, InPlace
from fsdpfuzz.case.modules.in_place import changed_views
from fsdpfuzz.errors import CaseError

LAYER = Linear(out=3)
TWO = Sequential(children=(LAYER, Activation(), LAYER))
PLAIN = Sequential(children=(LAYER, Activation(), Linear(out=3, bias=False)))


def case(model: Node, length: int | None = None, **changes: object) -> CaseSpec:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    given = CaseSpec(
        world_size=2,
        model=model,
        inputs=Dense(width=3, length=length),
        plan=plan,
        program=ITERATION,
    )
    return msgspec.structs.replace(given, **changes)


@pytest.mark.parametrize(
    "body",
    [Activation(), Sequential(children=(LAYER, Activation())), Sequential(children=())],
    ids=["activation", "activation last", "empty"],
)
def test_only_what_a_linear_layer_puts_out_is_changed(body: Node) -> None:
    with pytest.raises(CaseError, match="linear layer") as caught:
        check(case(InPlace(body=body)))
    assert caught.value.path == "$.model.body"


def test_the_width_is_kept() -> None:
    with pytest.raises(CaseError, match="keep the width 3"):
        check(case(InPlace(body=Linear(out=2))))


# Of an input with three dimensions a linear layer puts out a view of its own.
@pytest.mark.parametrize(("view", "length"), [(False, None), (True, None), (False, 2)])
def test_a_reentrant_checkpoint_puts_out_no_view_that_is_changed(
    view: bool, length: int | None
) -> None:
    given = case(
        InPlace(body=LAYER, view=view),
        inputs=Dense(width=3, length=length, requires_grad=True),
        checkpoints=(Checkpoint(path="inner", reentrant=True),),
    )
    if not view and length is None:
        check(given)
        return
    with pytest.raises(CaseError, match="no view in place") as caught:
        check(given)
    assert caught.value.path == "$.checkpoints[0]"
    check(msgspec.structs.replace(given, checkpoints=(Checkpoint(path="inner"),)))


@pytest.mark.parametrize(
    ("model", "length", "paths", "value"),
    [
        (TWO, 2, set(), "no"),
        (InPlace(body=TWO), None, set(), "output"),
        (InPlace(body=TWO), 2, {"inner", "inner.2"}, "output"),
        (InPlace(body=PLAIN), 2, set(), "output"),
        (InPlace(body=TWO, view=True), None, {"inner"}, "view"),
        (InPlace(body=PLAIN, view=True), 2, {"inner"}, "view"),
        (InPlace(body=TWO, view=True), 2, {"inner", "inner.body", "inner.body.2"}, "view"),
    ],
)
def test_which_modules_put_out_a_changed_view(
    model: Node, length: int | None, paths: set[str], value: str
) -> None:
    given = case(model, length)
    check(given)
    assert changed_views(anatomy(given)) == paths
    assert features(given)["in_place"] == value


def test_what_comes_of_tokens_has_three_dimensions() -> None:
    model = Sequential(children=(Embedding(rows=5, out=3), InPlace(body=LAYER)))
    given = case(model, inputs=Tokens())
    check(given)
    assert changed_views(anatomy(given)) == {"1.inner"}


def test_the_output_itself_is_plainer() -> None:
    assert list(InPlace(body=LAYER, view=True).simpler()) == [InPlace(body=LAYER)]
    assert list(InPlace(body=LAYER).simpler()) == []
    assert InPlace(body=LAYER, view=True).words() == ["of a view"]
