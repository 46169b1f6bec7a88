"""A forward under ``torch.inference_mode``, and what FSDP makes in it."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Forward,
    Gain,
    Linear,
    Node,
    Norm,
    Plan,
    Precision,
    Rebuild,
    RequiresGrad,
    Sequential,
    Step,
    Tie,
    anatomy,
    check,
    features,
    lower,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.modules import Matrix
from fsdpfuzz.case.operations import FullParams, Op, StateDict, Unshard
from fsdpfuzz.case.recipe import With, call, walk
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL = Sequential(children=(Linear(out=4), Linear(out=4)))
UNDER = Forward(grad=False, inference=True)
BELOW = {"": "off", "0": "on"}
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
FIRST: tuple[Op, ...] = (UNDER, *TRAIN)
LATER: tuple[Op, ...] = (*TRAIN, UNDER, *TRAIN)


def case(plan: Plan, *program: Op, mesh: Mesh | None = None) -> CaseSpec:
    return make(plan, model=MODEL, program=program, mesh=mesh)


def memory(given: CaseSpec) -> dict[str, str]:
    a = anatomy(given)
    return {path: unit_features(a, path)["inference_memory"] for path in a.units}


def test_the_mode_is_entered_and_no_gradient_is_recorded() -> None:
    given = case(fsdp2(""), *LATER)
    check(given)
    recipe = lower(anatomy(given))
    contexts = [s.context for s in walk(recipe.main) if isinstance(s, With)]
    assert contexts == [call("torch.inference_mode")]
    assert UNDER.words() == "forward inference_mode"
    with pytest.raises(CaseError, match="records no gradients"):
        check(case(fsdp2(""), Forward(inference=True), Backward()))


def test_no_grad_is_plainer() -> None:
    plainer = [n.case for n in simpler(case(fsdp2(""), *LATER)) if "inference" in n.words]
    assert plainer == [case(fsdp2(""), *TRAIN, Forward(grad=False), *TRAIN)]


@pytest.mark.parametrize("plan", [fsdp1("", "0"), fsdp2("", "0")])
@pytest.mark.parametrize(
    ("program", "when"),
    [
        (FIRST, "first"),
        (LATER, "later"),
        ((Forward(grad=False), *FIRST), "later"),
        ((FullParams(), *FIRST), "later"),
        (TRAIN, "no"),
    ],
    ids=["first", "later", "after another", "after a look", "never"],
)
def test_what_is_ready_before_stays_so(plan: Plan, program: tuple[Op, ...], when: str) -> None:
    given = case(plan, *program)
    check(given)
    assert features(given)["inference_mode"] == when
    assert set(memory(given).values()) == {"on" if when == "first" else "off"}


def test_a_new_model_begins_anew() -> None:
    for plan in (fsdp1(""), fsdp2("")):
        given = case(plan, *TRAIN, Rebuild(plan=plan), UNDER)
        assert features(given)["inference_mode"] == "first"


def test_only_fsdp1_saves_a_state_by_making_its_units_ready() -> None:
    assert memory(case(fsdp1(""), StateDict(), *FIRST)) == {"": "off"}
    assert memory(case(fsdp2(""), StateDict(), *FIRST)) == {"": "on"}
    assert memory(case(fsdp2("", "0"), Unshard(unit="0"), *TRAIN, UNDER)) == {"": "off", "0": "off"}


def test_a_unit_that_is_not_called_is_fsdp1s_alone() -> None:
    below = Forward(grad=False, inference=True, target="0")
    assert memory(case(fsdp1("0", "1"), below)) == {"0": "on", "1": "off"}
    assert memory(case(fsdp1("", "0"), below)) == {"": "off", "0": "off"}
    assert memory(case(fsdp2("", "0"), below)) == {"": "off", "0": "on"}


def test_what_fsdp1_neither_gathers_nor_casts_has_no_memory() -> None:
    whole = case(fsdp1("", sharding="NO_SHARD"), *FIRST)
    assert (memory(whole), features(whole)["inference_mode"]) == ({"": "off"}, "first")
    lower_one = Precision(param="bfloat16")
    cast = case(fsdp1("", sharding="NO_SHARD", precision=lower_one), *FIRST)
    assert memory(cast) == {"": "on"}


def test_one_shard_is_apart_with_fsdp2() -> None:
    given = case(fsdp2(""), *FIRST, mesh=Mesh(replicate=2, shard=1))
    assert memory(given) == {"": "one shard"}


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ((Forward(), Backward()), "no"),
        ((Forward(grad=False), Forward(), Backward(), Forward(grad=False)), "no"),
        ((Forward(), Forward(), Backward()), "no"),
        ((Forward(), Forward(grad=False), Backward()), "no_grad"),
        ((Forward(), Forward(drop=True), Forward(grad=False), Backward()), "dropped"),
        ((Forward(), Forward(grad=False, inference=True), Backward()), "inference_mode"),
        ((Forward(), Forward(grad=False), Forward(), Backward()), "no_grad"),
    ],
)
def test_what_comes_between_a_forward_and_its_backward(program: tuple[Op, ...], how: str) -> None:
    assert features(make(fsdp2(""), program=program))["meanwhile"] == how


MULTIPLIED = Sequential(children=(Linear(out=4), Sequential(children=(Gain(), Linear(out=4)))))


@pytest.mark.parametrize(
    ("model", "checkpoint", "expected"),
    [
        (MULTIPLIED, Checkpoint(path=""), {"": "on", "0": "off"}),
        (MULTIPLIED, Checkpoint(path="1"), {"": "on", "0": "off"}),
        (MULTIPLIED, Checkpoint(path="1.1"), {"": "off", "0": "off"}),
        (MULTIPLIED, Checkpoint(path="1", reentrant=True), {"": "off", "0": "off"}),
        (MULTIPLIED, Checkpoint(path="1", kind="offload"), {"": "off", "0": "off"}),
        (Sequential(children=(Matrix(body=Linear(out=4)), Gain())), Checkpoint(path="0"), BELOW),
        (Sequential(children=(Norm(variant="rms"), Gain())), Checkpoint(path="0"), BELOW),
        (Sequential(children=(Norm(), Gain())), Checkpoint(path="0"), {"": "off", "0": "off"}),
        (
            Sequential(children=(Norm(variant="rms", affine=False), Gain())),
            Checkpoint(path="0"),
            {"": "off"},
        ),
    ],
)
def test_a_product_with_a_parameter_of_the_unit_is_recomputed(
    model: Node, checkpoint: Checkpoint, expected: dict[str, str]
) -> None:
    paths = tuple(path for path in ("", "0") if path in expected)
    a = anatomy(make(fsdp1(*paths), model=model, program=TRAIN, checkpoints=(checkpoint,)))
    assert {path: unit_features(a, path)["recomputed_product"] for path in a.units} == expected


def test_a_tie_within_the_unit_hides_no_product() -> None:
    model = Sequential(children=(Norm(), Norm(variant="rms")))
    tied = (Tie(source="0.weight", target="1.weight"),)
    whole = (Checkpoint(path=""),)
    a = anatomy(make(fsdp1(""), model=model, program=TRAIN, checkpoints=whole, ties=tied))
    assert unit_features(a, "")["recomputed_product"] == "on"


UNFREEZE = RequiresGrad(parameters=("0.bias",), value=True)
ORIG = fsdp1("", "0", use_orig_params=True)


@pytest.mark.parametrize(
    ("plan", "program", "expected"),
    [
        (ORIG, (*TRAIN, UNDER, UNFREEZE), True),
        (ORIG, (Forward(), UNDER, Backward(), UNFREEZE), True),
        (ORIG, (*TRAIN, UNFREEZE, UNDER), False),
        # Each shards the unit once more.
        (ORIG, (*TRAIN, UNDER, Forward(grad=False), UNFREEZE), False),
        (ORIG, (*TRAIN, UNDER, FullParams(), UNFREEZE), False),
        (ORIG, (*TRAIN, Forward(grad=False), UNFREEZE), False),
        # No rank lacks a parameter of a flat one, or of one that is not sharded.
        (fsdp1("", "0"), (*TRAIN, UNDER, UNFREEZE), False),
        (fsdp1("", use_orig_params=True, sharding="NO_SHARD"), (*TRAIN, UNDER, UNFREEZE), False),
        (fsdp2("", "0"), (*TRAIN, UNDER, UNFREEZE), False),
    ],
)
def test_a_parameter_that_a_rank_lacks_is_unfrozen_behind_the_mode(
    plan: Plan, program: tuple[Op, ...], expected: bool
) -> None:
    """Of 16 elements and four rank 0 has the first ten, and so none of the bias."""
    a = anatomy(make(plan, model=MODEL, program=program, frozen=("0.weight", "0.bias")))
    found = parameter_features(a, "0.bias").get("unfrozen_in_inference", "off")
    assert found == ("on" if expected else "off")


def test_the_backward_of_a_unit_that_is_trained_shards_it_outside_of_the_mode() -> None:
    program = (Forward(), UNDER, Backward(), UNFREEZE)
    for frozen, expected in ((("0.bias",), "off"), (("0.weight", "0.bias"), "on")):
        a = anatomy(make(ORIG, model=MODEL, program=program, frozen=frozen))
        assert parameter_features(a, "0.bias")["unfrozen_in_inference"] == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "off"),
        # What its gradients are copied to.
        ({"cpu_offload": True}, "on"),
        ({"precision": Precision(param="bfloat16")}, "on"),
    ],
)
def test_a_unit_that_is_not_sharded_may_have_such_memory(
    options: dict[str, Any], expected: str
) -> None:
    given = case(fsdp1("", sharding="NO_SHARD", **options), *FIRST)
    assert memory(given) == {"": expected}
