"""Meshes that fully_shard is told by name: of what axes, and what goes with them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Linear,
    Node,
    Norm,
    Sequential,
    Step,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    foreseen_rejections,
    is_sound,
    lower,
    needs_of_torch,
)
from fsdpfuzz.case.dimensions import DIMENSIONS, on_ranks
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.modules import InPlace
from fsdpfuzz.case.named_axes import SpmdMesh, shard_axes
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.recipe import Call, values
from fsdpfuzz.case.spmd_mesh import SpmdMeshDimension
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect.bytes import waiting_bytes
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=4), Norm(), Linear(out=2)))
CUT = TensorParallel(modules=(Parallel(module="0"), Parallel(module="2", style="rowwise")))


def named(told: SpmdMesh | None = None, **changes: Any) -> CaseSpec:
    given = {"model": LAYERS, "program": (Forward(), Backward(), Step()), "world_size": 4}
    return make(fsdp2("", "0"), spmd_mesh=told or SpmdMesh(), **(given | changes))


def asked_of_fully_shard(case: CaseSpec) -> list[Call]:
    """The named axes that units are told, as the recipe has them."""
    recipe = lower(anatomy(case))
    found = [v for p in recipe.procedures for s in p.body for v in _values(s)]
    return [v for v in found if isinstance(v, Call) and "DataParallelMeshDims" in str(v.function)]


def _values(statement: Any) -> list[Any]:
    return list(values(getattr(statement, "call", None)))


@pytest.mark.parametrize(
    ("told", "changes", "axes", "value", "words"),
    [
        (SpmdMesh(), {}, {"dp_shard": 4}, "one axis", "of one axis of shards"),
        (
            SpmdMesh(inner=2),
            {},
            {"dp_shard": 2, "dp_inner": 2},
            "two axes",
            "of two axes of shards, the second over 2 ranks",
        ),
        (
            SpmdMesh(inner=1),
            {"mesh": Mesh(replicate=2, shard=2)},
            {"dp_shard": 2, "dp_inner": 1},
            "two axes",
            "of two axes of shards, the second over 1 rank",
        ),
        (
            SpmdMesh(),
            {"tensor_parallel": CUT},
            {"dp_shard": 2},
            "one axis",
            "of one axis of shards",
        ),
    ],
)
def test_its_axes_features_and_words(
    told: SpmdMesh, changes: dict[str, Any], axes: dict[str, int], value: str, words: str
) -> None:
    case = named(told, **changes)
    check(case)
    assert dict(shard_axes(case, told)) == axes
    assert features(case)["spmd_mesh"] == value
    assert dict(SpmdMeshDimension().facts(case)) == {"named mesh": words}
    assert needs_of_torch(anatomy(case)) == ("fully_shard(dp_mesh_dims)",)
    assert decode(encode(case)) == case
    assert features(replace(case, spmd_mesh=None))["spmd_mesh"] == "no"


def test_each_unit_is_told_its_axes() -> None:
    plain = dict(asked_of_fully_shard(named())[0].options)
    assert plain == {"shard": "dp_shard"}
    both = asked_of_fully_shard(named(SpmdMesh(inner=2), mesh=Mesh(replicate=2, shard=2)))
    assert len(both) == 2, "one for each unit"
    told = dict(both[0].options)
    assert set(told) == {"shard", "replicate"}
    assert told["replicate"] == "dp_replicate"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"plan": fsdp1("")}, "fsdp2 alone"),
        ({"world_size": 1}, "cannot be shared out"),
        ({"model": Sequential(children=(Linear(out=3), Gain()))}, "'1.gain' is used otherwise"),
        ({"plan": fsdp2("0")}, "no unit manages"),
        (
            {
                "model": Sequential(children=(Linear(out=4), Linear(out=4))),
                "ties": (Tie(source="0.weight", target="1.weight"),),
            },
            "no tied parameters",
        ),
        (
            {"checkpoints": (Checkpoint(path="0", kind="offload"),)},
            "no activations that are offloaded",
        ),
        (
            {"model": Linear(out=4), "plan": fsdp2(""), "keyword_input": True},
            "'' is given its input",
        ),
        ({"model": InPlace(body=Linear(out=4)), "plan": fsdp2("")}, "changes what a module puts"),
        (
            {
                "tensor_parallel": TensorParallel(modules=(Parallel(module="0", into="1"),)),
                "model": Sequential(children=(Linear(out=4), Linear(out=2))),
            },
            "data is whole between modules",
        ),
        ({"tensor_parallel": replace(CUT, hands_on=True)}, "data is whole between modules"),
        ({"tensor_parallel": replace(CUT, use_local_output=False)}, "data is no DTensor"),
    ],
)
def test_what_does_not_go_with_it(changes: dict[str, Any], told: str) -> None:
    given = {"model": LAYERS, "program": (Forward(), Backward()), "world_size": 4, **changes}
    plan = given.pop("plan", fsdp2("", "0"))
    case = make(plan, spmd_mesh=SpmdMesh(), **given)
    with pytest.raises(CaseError, match=told):
        check(case)


def test_a_second_axis_has_as_many_ranks_as_divide_the_shards() -> None:
    with pytest.raises(CaseError, match="3 does not divide the 4 ranks") as raised:
        check(named(SpmdMesh(inner=3)))
    assert raised.value.path == "$.spmd_mesh.inner"


def test_a_number_of_ranks_to_reshard_over_is_refused() -> None:
    units = (Fsdp2Unit(path="", reshard_after_forward=2), Fsdp2Unit(path="0"))
    case = replace(named(), plan=Fsdp2Plan(units=units))
    check(case)
    names = [rejection.name for rejection in foreseen_rejections(anatomy(case))]
    assert names == ["fsdp2_resharded_by_name"]
    plain = [r.name for r in foreseen_rejections(anatomy(replace(case, spmd_mesh=None)))]
    assert plain == []


def test_norms_are_clipped_over_one_mesh() -> None:
    """What is cut over ranks and what is not lies on one mesh, so that one norm has both."""
    program = (Forward(), Backward(), Clip(max_norm=1.0), Step())
    case = named(tensor_parallel=CUT, program=program)
    assert is_sound(case)
    assert not is_sound(replace(case, spmd_mesh=None))


def test_what_waits_of_gradients_is_promised_where_nothing_is_cut() -> None:
    program = (Forward(sync=False), Backward(), Forward(), Backward(), Step())
    assert waiting_bytes(anatomy(named(program=program)), 1, 0) is not None
    assert waiting_bytes(anatomy(named(program=program, tensor_parallel=CUT)), 1, 0) is None


def test_it_becomes_simpler_and_moves_to_other_ranks() -> None:
    case = named(SpmdMesh(inner=2))
    (dimension,) = [d for d in DIMENSIONS if d.name == "spmd_mesh"]
    told = [simpler.case.spmd_mesh for simpler in dimension.simpler(case)]
    assert told == [None, SpmdMesh()]
    assert list(dimension.simpler(replace(case, spmd_mesh=None))) == []
    assert on_ranks(case, 2).spmd_mesh == SpmdMesh(inner=2)
    assert on_ranks(case, 3).spmd_mesh == SpmdMesh()


@pytest.mark.parametrize("model", [Linear(out=3), Norm()])
def test_one_module_will_do(model: Node) -> None:
    check(make(fsdp2(""), model=model, spmd_mesh=SpmdMesh(), program=(Forward(), Backward())))


def test_ignored_parameters_would_be_no_ones() -> None:
    unit = replace(fsdp2("").units[0], ignored=("0",))
    plan = replace(fsdp2(""), units=(unit,))
    with pytest.raises(CaseError, match=r"no unit manages '0\.bias'"):
        check(replace(named(), plan=plan, optimizer=None, program=(Forward(), Backward())))
