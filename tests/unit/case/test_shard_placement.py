"""Placements of parameters: what they may be of, what FSDP refuses, what is plainer."""

from __future__ import annotations

import json

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    foreseen_rejections,
    is_sound,
    parameter_features,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.units import Placement
from fsdpfuzz.case.units.shard_placement import ShardPlacement
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler


def placed(**dims: int) -> tuple[Placement, ...]:
    return tuple(Placement(parameter=_fqn(name), dim=dim) for name, dim in dims.items())


def _fqn(name: str) -> str:
    return name.removeprefix("p").replace("_", ".")


def case(
    root: tuple[Placement, ...] = (), inner: tuple[Placement, ...] = (), **changes: object
) -> CaseSpec:
    """Weights 3 x 4 and 4 x 3; the first is a unit of its own."""
    units = (
        Fsdp2Unit(path="", shard_placement=root),
        Fsdp2Unit(path="0", shard_placement=inner),
    )
    made = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), Linear(out=4))),
        inputs=Dense(width=4),
        plan=Fsdp2Plan(units=units),
        program=(Forward(), Backward()),
    )
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    "sound",
    [
        case(inner=placed(p0_weight=1)),
        case(inner=placed(p0_weight=-1, p0_bias=-1)),
        case(root=placed(p1_weight=0, p1_bias=0)),
    ],
)
def test_a_placement_is_of_a_parameter_that_the_unit_manages(sound: CaseSpec) -> None:
    check(sound)
    assert decode(encode(sound)) == sound
    assert foreseen_rejections(anatomy(sound)) == ()


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        (case(root=placed(p0_weight=1)), "units[0].shard_placement[0]"),
        (case(inner=placed(p0_gone=0)), "units[1].shard_placement[0]"),
        (case(inner=placed(p0_bias=1)), "units[1].shard_placement[0].dim"),
        (case(inner=placed(p0_weight=-3)), "units[1].shard_placement[0].dim"),
        (case(inner=placed(p0_weight=0) + placed(p0_weight=1)), "units[1].shard_placement[1]"),
    ],
)
def test_any_other_is_a_contradiction(wrong: CaseSpec, at: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    assert caught.value.path == f"$.plan.{at}"


def test_a_tied_parameter_has_one() -> None:
    square = Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False)))
    ties = (Tie(source="0.weight", target="1.weight"),)
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", shard_placement=placed(p1_weight=1)),))
    tied = case(model=square, ties=ties, plan=plan)
    check(tied)
    for name in ("0.weight", "1.weight"):
        assert parameter_features(anatomy(tied), name)["sharded_along"] == "other"
    both = placed(p0_weight=1, p1_weight=1)
    twice = case(
        model=square, ties=ties, plan=Fsdp2Plan(units=(Fsdp2Unit(path="", shard_placement=both),))
    )
    assert not is_sound(twice)


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        (case(root=placed(p1_weight=1)), True),
        (case(root=placed(p1_weight=-1)), True),
        (case(root=placed(p1_weight=0)), False),
        (case(inner=placed(p0_weight=0)), False),
        (case(inner=placed(p0_weight=1), world_size=4), False),
        (case(inner=placed(p0_weight=1), world_size=3), True),
        (case(inner=placed(p0_weight=1), world_size=8), True),
        (case(inner=placed(p0_weight=1), world_size=8, mesh=Mesh(replicate=2, shard=4)), False),
    ],
)
def test_uneven_shards_along_another_dimension_are_refused(asked: CaseSpec, refused: bool) -> None:
    check(asked)
    names = [rejection.name for rejection in foreseen_rejections(anatomy(asked))]
    assert names == (["fsdp2_uneven_placement"] if refused else [])


@pytest.mark.parametrize(
    ("root", "inner", "value"),
    [
        ((), (), "off"),
        ((), placed(p0_weight=1), "other"),
        (placed(p1_weight=0), (), "rows"),
        (placed(p1_bias=-1), (), "negative"),
        ((), placed(p0_weight=1, p0_bias=0), "mixed"),
        (placed(p1_weight=0), placed(p0_weight=1), "mixed"),
    ],
)
def test_its_features(
    root: tuple[Placement, ...], inner: tuple[Placement, ...], value: str
) -> None:
    assert features(case(root, inner))["shard_placement"] == value


def test_the_feature_of_a_parameter_counts_from_the_first_dimension() -> None:
    a = anatomy(case(inner=placed(p0_weight=-2, p0_bias=-1)))
    along = {p.fqn: parameter_features(a, p.fqn)["sharded_along"] for p in a.parameters}
    assert along == {
        "0.weight": "rows",
        "0.bias": "rows",
        "1.weight": "default",
        "1.bias": "default",
    }


def test_none_and_one_less_are_plainer() -> None:
    before = case(inner=placed(p0_weight=1, p0_bias=0))
    found = list(ShardPlacement().simpler(before))
    assert [s.case for s in found] == [
        case(),
        case(inner=placed(p0_bias=0)),
        case(inner=placed(p0_weight=1)),
    ]
    assert [s.words for s in found] == ["shard_placement_fn", "", ""]


def test_a_smaller_model_takes_its_placements_along() -> None:
    before = case(root=placed(p1_weight=0), inner=placed(p0_weight=1))
    left = {u.shard_placement for s in simpler(before) for u in s.case.plan.units}  # type: ignore[union-attr]
    assert placed(p0_weight=0) in left, "the first layer gone, the second one is named anew"


def test_a_case_without_it_reads_as_before() -> None:
    assert "shard_placement" not in json.dumps(json.loads(encode(case())))
    assert ShardPlacement().words(placed(p0_weight=1, p0_bias=-1)) == (
        "shards 0.weight along 1, 0.bias along -1"
    )
