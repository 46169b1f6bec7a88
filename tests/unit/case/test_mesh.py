"""A mesh of two axes: what goes with it, what is plainer, and over which ranks units lie."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Plan,
    Sequential,
    Sharding,
    StateDict,
    Step,
    Variant,
    anatomy,
    check,
    decode,
    digest,
    encode,
    features,
    is_sound,
    lower,
    unit_features,
)
from fsdpfuzz.case.dimensions import on_ranks
from fsdpfuzz.case.mesh import Mesh, MeshDimension, over_mesh
from fsdpfuzz.case.recipe import Call, Do, values
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler

FSDP2: Plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0")))
TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())


def fsdp1(*strategies: Sharding, wrap: str = "nested") -> Plan:
    """The root, and its first child if there are two strategies."""
    paths = ("", "0")
    units = tuple(Fsdp1Unit(path=p, sharding=s) for p, s in zip(paths, strategies, strict=False))
    return Fsdp1Plan(units=units, wrap=wrap)  # type: ignore[arg-type]


def case(plan: Plan, replicate: int = 2, shard: int = 2, **changes: object) -> CaseSpec:
    made = CaseSpec(
        world_size=replicate * shard,
        model=Sequential(children=(Linear(out=3), Linear(out=2))),
        inputs=Dense(width=2),
        plan=plan,
        program=TRAIN,
        mesh=Mesh(replicate=replicate, shard=shard),
    )
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    "sound",
    [
        case(FSDP2),
        case(FSDP2, 1, 3),
        case(FSDP2, 2, 1),
        case(fsdp1("HYBRID_SHARD")),
        case(fsdp1("FULL_SHARD", "_HYBRID_SHARD_ZERO2"), 1, 2),
    ],
)
def test_it_goes_with_units_that_are_sharded_over_it(sound: CaseSpec) -> None:
    check(sound)
    assert decode(encode(sound)) == sound


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (case(FSDP2, world_size=3), "$.mesh"),
        (case(fsdp1("FULL_SHARD", "NO_SHARD")), "$.mesh"),
        (case(fsdp1("HYBRID_SHARD"), mesh=None), "$.plan.units[0].sharding"),
        (case(fsdp1("FULL_SHARD", "HYBRID_SHARD"), mesh=None), "$.plan.units[1].sharding"),
        (
            case(fsdp1("HYBRID_SHARD"), program=(StateDict(form="local"),)),
            "$.program[0].form",
        ),
        (
            case(Fsdp2Plan(units=(Fsdp2Unit(path="", reshard_after_forward=4),))),
            "$.plan.units[0].reshard_after_forward",
        ),
    ],
)
def test_it_goes_with_nothing_else(wrong: CaseSpec, path: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    assert caught.value.path == path


def test_a_case_without_it_reads_and_is_named_as_before() -> None:
    plain = case(FSDP2, mesh=None)
    assert "mesh" not in json.loads(encode(plain))
    assert digest(plain) != digest(case(FSDP2))
    assert "mesh" not in dict(MeshDimension().facts(plain))
    facts = dict(MeshDimension().facts(case(FSDP2, 2, 1)))
    assert facts == {"mesh": "2 replicas on 1 rank each"}


@pytest.mark.parametrize(
    ("replicate", "shard", "value"),
    [(2, 2, "both"), (1, 2, "one replica"), (2, 1, "one shard")],
)
def test_its_feature_says_which_axis_has_one_rank(replicate: int, shard: int, value: str) -> None:
    assert features(case(FSDP2, replicate, shard))["mesh"] == value
    assert features(case(FSDP2, replicate, shard, mesh=None))["mesh"] == "no"


@pytest.mark.parametrize("mesh", [None, Mesh(replicate=1, shard=1)])
@pytest.mark.parametrize("plan", [FSDP2, fsdp1("HYBRID_SHARD", "HYBRID_SHARD")])
def test_one_rank_has_no_axis_at_all(plan: Plan, mesh: Mesh | None) -> None:
    assert features(case(plan, 1, 1, mesh=mesh))["mesh"] == "one rank"


def test_one_rank_may_be_told_to_some_units_alone() -> None:
    assert features(case(fsdp1("HYBRID_SHARD", "FULL_SHARD"), 1, 1))["mesh"] == "one rank, mixed"


@pytest.mark.parametrize("strategy", typing.get_args(Sharding))
def test_over_one_rank_every_strategy_of_fsdp1_is_no_shard(strategy: Sharding) -> None:
    alone = case(fsdp1(strategy, "FULL_SHARD"), 1, 1)
    assert features(alone)["sharding"] == "NO_SHARD"
    a = anatomy(alone)
    assert {unit_features(a, path)["sharding"] for path in a.units} == {"NO_SHARD"}
    # Over one shard of several it is, too, but never synchronises the replicas.
    several = anatomy(case(fsdp1(strategy), 2, 1))
    assert unit_features(several, "")["sharding"] == strategy


def test_units_lie_over_the_shard_axis_and_others_over_all_ranks() -> None:
    assert [anatomy(case(FSDP2)).shards(path) for path in ("", "0", None)] == [2, 2, 4]
    mixed = anatomy(case(fsdp1("HYBRID_SHARD", "FULL_SHARD")))
    assert [mixed.shards(path) for path in ("", "0")] == [2, 4]
    assert anatomy(case(FSDP2, mesh=None)).shards("0") == 4


def test_one_dimension_is_plainer_in_every_plan() -> None:
    before = case(
        fsdp1("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"),
        twins=(Variant(name="first", plan=fsdp1("_HYBRID_SHARD_ZERO2")),),
    )
    plain = next(s for s in MeshDimension().simpler(before) if s.words == "2-D mesh")
    expected = case(
        fsdp1("FULL_SHARD", "SHARD_GRAD_OP"),
        mesh=None,
        twins=(Variant(name="first", plan=fsdp1("SHARD_GRAD_OP")),),
    )
    assert plain.case == expected
    assert is_sound(plain.case)
    assert over_mesh(expected, Mesh(replicate=2, shard=2)) == before


@pytest.mark.parametrize("plan", [FSDP2, fsdp1("HYBRID_SHARD")])
def test_fewer_ranks_along_one_axis_are_plainer(plan: Plan) -> None:
    smaller = {s.case.mesh for s in simpler(case(plan)) if s.case.world_size < 4}
    assert smaller == {Mesh(replicate=1, shard=2), Mesh(replicate=2, shard=1)}


@pytest.mark.parametrize(
    ("replicate", "shard", "size", "expected"),
    [(2, 2, 2, (1, 2)), (1, 2, 4, (1, 4)), (2, 1, 3, (3, 1)), (1, 4, 2, (1, 2)), (2, 2, 8, (4, 2))],
)
def test_it_follows_the_number_of_ranks(
    replicate: int, shard: int, size: int, expected: tuple[int, int]
) -> None:
    moved = on_ranks(case(FSDP2, replicate, shard), size)
    assert moved.mesh is not None
    assert (moved.mesh.replicate, moved.mesh.shard) == expected
    check(moved)


def test_a_number_of_ranks_that_does_not_divide_is_not_sound() -> None:
    assert not is_sound(on_ranks(case(FSDP2, 2, 2), 3))


def calls(case: CaseSpec) -> list[Call]:
    """All calls that wrap, or make a mesh."""
    recipe = lower(anatomy(case))
    body = (*recipe.main, *recipe.procedure("shard").body)
    made = [v for s in body if isinstance(s, Do) for v in values(s.call) if isinstance(v, Call)]
    return [c for c in made if isinstance(c.function, str) and "steps.names" not in c.function]


def test_units_are_handed_the_mesh_that_they_lie_over() -> None:
    found = calls(case(FSDP2))
    assert sum(c.function == "steps.mesh.replicated" for c in found) == 1
    told = [dict(c.options) for c in found if str(c.function).endswith("fully_shard")]
    assert [set(options) for options in told] == [{"mesh"}, {"mesh"}]


def test_fsdp1_hands_it_to_hybrid_units_alone() -> None:
    found = calls(case(fsdp1("HYBRID_SHARD", "FULL_SHARD")))
    wrapped = [c for c in found if str(c.function).endswith("FullyShardedDataParallel")]
    assert ["device_mesh" in dict(c.options) for c in wrapped] == [False, True]
    assert not [c for c in calls(case(fsdp1("FULL_SHARD"), mesh=None)) if "mesh" in str(c.function)]


@pytest.mark.parametrize(
    ("root", "inner", "told"),
    [
        ("HYBRID_SHARD", "FULL_SHARD", True),
        ("FULL_SHARD", "HYBRID_SHARD", True),
        ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", False),
    ],
)
def test_a_policy_says_where_a_unit_differs(root: Sharding, inner: Sharding, told: bool) -> None:
    found = calls(case(fsdp1(root, inner, wrap="custom_policy")))
    chosen = next(c for c in found if c.function == "steps.fsdp1.policy.chosen")
    assert ("device_mesh" in list(values(chosen))) is told
