"""What experts take and put out, when they are called, and which seeds send rows where."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Activation,
    Backward,
    Branches,
    CaseSpec,
    Dense,
    Dropout,
    EncoderLayer,
    Forward,
    Linear,
    Node,
    Positions,
    Residual,
    Sequential,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.modules import Attention, ConvNorm, Experts, InPlace, KvReuse, LayerDrop
from fsdpfuzz.case.modules.in_place import changed_views
from fsdpfuzz.case.operations import Interrupt, Op, Recover
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.recipe import Call, Do, Index, Sum, Variable, call, walk
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.tree import smaller_models
from tests.unit.case.test_units import fsdp2, make

LAYER = Linear(out=4)
TWO = Experts(children=(LAYER, LAYER))


def case(model: Node = TWO, **changes: Any) -> CaseSpec:
    return make(
        changes.pop("plan", fsdp2("")),
        **{"model": model, "program": (Forward(), Backward()), **changes},
    )


def seeds(given: CaseSpec) -> list[Call]:
    """What the generator is seeded with."""
    recipe = lower(anatomy(given))
    bodies = (*(procedure.body for procedure in recipe.procedures), recipe.main)
    calls = [s.call for body in bodies for s in walk(body) if isinstance(s, Do)]
    # The first is that of the model.
    found = [c for c in calls if isinstance(c, Call) and c.function == "torch.manual_seed"]
    return found[1:]


@pytest.mark.parametrize("grad", [True, False])
def test_the_router_comes_first_and_every_expert_is_called(grad: bool) -> None:
    a = anatomy(case(program=(Forward(grad=grad),)))
    ((_, op, now),) = a.situations(0)
    assert isinstance(op, Forward)
    called = [c.path for c in a.calls(op, now)]
    assert called == ["", "router", "experts.0", "experts.1"]
    assert [p.path for p in a.places] == called
    assert a.by_fqn["router.weight"].shape == (2, 4)
    assert a.optional == ()


@pytest.mark.parametrize(
    ("expert", "says"),
    [
        (Linear(out=3), "an expert must keep the width 4"),
        (Branches(children=(LAYER, LAYER), merge="stack"), "an expert must keep the batch"),
        (ConvNorm(), "conv_norm takes rows together"),
        (Residual(body=Sequential(children=(LAYER, EncoderLayer()))), "encoder_layer takes rows"),
        (Positions(rows=3), "positions takes rows together"),
        (Attention(), "attention takes rows together"),
        (KvReuse(), "kv_reuse takes rows together"),
    ],
)
def test_an_expert_takes_any_number_of_rows_and_keeps_their_width(expert: Node, says: str) -> None:
    wrong = case(Experts(children=(LAYER, expert)), inputs=Dense(width=4, length=3))
    with pytest.raises(CaseError, match=says) as caught:
        check(wrong)
    assert caught.value.path is not None
    assert caught.value.path.startswith("$.model.children[1]")


def test_it_is_kept_as_it_is_and_reduced_to_one_of_its_experts() -> None:
    given = case(Experts(children=(LAYER, Activation(), LAYER), top=2, start=1))
    check(given)
    assert decode(encode(given)) == given
    assert features(given)["experts"] == "on"
    assert features(case(LAYER))["experts"] == "off"
    smaller = [found.model for found in smaller_models(given)]
    assert LAYER in smaller
    assert Experts(children=(LAYER, Activation()), top=2, start=1) in smaller
    assert Experts(children=(LAYER, Activation(), LAYER), start=1) in smaller
    assert Experts(children=(LAYER, Activation(), LAYER), top=2) in smaller


@pytest.mark.parametrize(
    ("model", "number"),
    [
        (TWO, Sum(0, Index(0))),
        (Experts(children=(Dropout(), LAYER)), Sum(0, Index(0))),
        # By which layers are told apart.
        (Sequential(children=(TWO, LayerDrop(children=(LAYER, LAYER)))), Index(0)),
    ],
)
def test_each_rank_has_another_seed(model: Node, number: Any) -> None:
    (found,) = seeds(case(model))
    seed = call("steps.randomness.on_rank", number, Variable("rank"))
    assert found == call("torch.manual_seed", seed)
    (plain,) = seeds(case(LayerDrop(children=(LAYER, LAYER))))
    assert plain == call("torch.manual_seed", Index(0))
    assert seeds(case(LAYER)) == []


@pytest.mark.parametrize("op", [Interrupt(module=""), Recover(module="")])
def test_what_an_exception_ends_sends_rows_where_they_would_have_gone(op: Op) -> None:
    first, second = seeds(case(program=(op, Forward(), Backward())))
    assert first == second


def test_ranks_of_one_batch_send_rows_to_the_same_experts() -> None:
    cut = TensorParallel(modules=(Parallel(module="experts.0"),))
    (found,) = seeds(case(tensor_parallel=cut, world_size=4))
    batch = call("steps.mesh.batch_of", Variable("rank"), 2)
    seed = call("steps.randomness.on_rank", Sum(0, Index(0)), batch)
    assert found == call("torch.manual_seed", seed)


def test_rows_have_two_dimensions_in_an_expert() -> None:
    changing = InPlace(body=LAYER)
    deep = Dense(width=4, length=3)
    assert changed_views(anatomy(case(changing, inputs=deep))) == {"inner"}
    inside = case(Experts(children=(changing, LAYER)), inputs=deep)
    assert changed_views(anatomy(inside)) == frozenset()
    view = Experts(children=(replace(changing, view=True), LAYER))
    assert changed_views(anatomy(case(view, inputs=deep))) == {"experts.0.inner"}
