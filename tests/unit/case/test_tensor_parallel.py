"""What is cut over ranks before it is sharded: of what FSDP then sees, and what goes with it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Embedding,
    Forward,
    Gain,
    Linear,
    Node,
    Norm,
    Op,
    Sequential,
    StateDict,
    Step,
    Tie,
    Tokens,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
    lower,
    parameter_features,
)
from fsdpfuzz.case.dimensions import DIMENSIONS, on_ranks
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.meta_init import MetaInit
from fsdpfuzz.case.modules import InPlace, Repeat
from fsdpfuzz.case.operations import Clip, FullParams, OptimState, Transfer
from fsdpfuzz.case.parallel import Parallel, pairs
from fsdpfuzz.case.tensor_parallel import (
    TensorParallel,
    TensorParallelDimension,
    cut_dims,
    data_ranks,
    local,
    sharing,
)
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect.bytes import shard_numel
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=6), Activation(fn="gelu"), Linear(out=4)))
SQUARE = Sequential(children=(Linear(out=4), Activation(fn="gelu"), Linear(out=4)))
PAIR = Parallel(module="0", into="2")
COLUMNS = Parallel(module="0")
ROWS = Parallel(module="2", style="rowwise")
ONCE: tuple[Op, ...] = (Forward(), Backward())


def cut(*parts: Parallel, size: int = 2, **changes: Any) -> CaseSpec:
    given = {"model": LAYERS, "program": ONCE, "world_size": 4, **changes}
    plan = given.pop("plan", fsdp2("", "0"))
    return make(plan, tensor_parallel=TensorParallel(size=size, modules=parts), **given)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ((PAIR,), "over 2 ranks: 0 into 2"),
        ((COLUMNS,), "over 2 ranks: 0 colwise"),
        ((ROWS,), "over 2 ranks: 2 rowwise"),
        ((COLUMNS, ROWS), "over 2 ranks: 0 colwise, 2 rowwise"),
    ],
)
def test_its_features_and_words(parts: tuple[Parallel, ...], told: str) -> None:
    case = cut(*parts)
    check(case)
    assert decode(encode(case)) == case
    found = features(case)
    assert (found["tensor_parallel"], found["mesh"]) == ("on", "no")
    assert list(TensorParallelDimension().facts(case)) == [("tensors", told)]
    assert features(replace(case, tensor_parallel=None))["tensor_parallel"] == "off"
    assert "tensor_parallel" not in features(make(fsdp1("")))


def test_one_shard_is_left_where_all_ranks_share_a_batch() -> None:
    case = cut(PAIR, world_size=2)
    check(case)
    assert features(case)["mesh"] == "one shard"
    assert anatomy(case).shards("") == data_ranks(case) == 1


def test_neighbours_share_a_batch() -> None:
    case = cut(PAIR)
    assert [sharing(case, rank) for rank in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [sharing(replace(case, tensor_parallel=None), rank) for rank in range(2)] == [(0,), (1,)]


def test_each_rank_has_a_part_of_what_is_cut() -> None:
    case = cut(PAIR)
    a = anatomy(case)
    assert cut_dims(a) == {"0.weight": 0, "0.bias": 0, "2.weight": 1, "2.bias": None}
    shapes = {p.fqn: local(a, p).shape for p in a.parameters}
    assert shapes == {"0.weight": (3, 4), "0.bias": (3,), "2.weight": (4, 3), "2.bias": (4,)}
    along = {name: parameter_features(a, name)["cut_along"] for name in shapes}
    assert along == {
        "0.weight": "rows",
        "0.bias": "rows",
        "2.weight": "columns",
        "2.bias": "copied",
    }
    # Two shards of (3, 4) and of 3 take two rows each, which FSDP2 pads.
    assert shard_numel(a, "0") == 2 * 4 + 2
    assert shard_numel(a, "") == 2 * 3 + 2


def test_an_embedding_is_cut_the_other_way_round() -> None:
    model = Sequential(children=(Embedding(rows=8, out=4), Linear(out=2)))
    for style, dim in (("colwise", 1), ("rowwise", 0)):
        case = cut(
            Parallel(module="0", style=style),  # type: ignore[arg-type]
            model=model,
            inputs=Tokens(),
        )
        check(case)
        assert cut_dims(anatomy(case)) == {"0.weight": dim}


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ((), [("0", "1")]),
        ((Activation(fn="relu"),), [("0", "2")]),
        ((Activation(fn="relu"), Activation(fn="gelu")), [("0", "3")]),
        # Of these each rank would need the whole.
        ((Norm(),), []),
        ((Gain(),), []),
    ],
)
def test_two_are_a_pair_with_functions_of_elements_between_them(
    between: tuple[Node, ...], found: list[tuple[str, str]]
) -> None:
    model = Sequential(children=(Linear(out=4), *between, Linear(out=4)))
    assert list(pairs(anatomy(make(fsdp2(""), model=model)))) == found


def test_it_comes_before_units_are_made() -> None:
    text = str(lower(anatomy(cut(PAIR))).procedures)
    assert text.index("ColwiseParallel") < text.index("RowwiseParallel") < text.index("fully_shard")


def test_what_is_on_the_meta_device_is_cut_before_it_has_values() -> None:
    text = str(lower(anatomy(cut(PAIR, meta_init=MetaInit()))).procedures)
    order = ["on_meta", "ColwiseParallel", "fully_shard", "meta_init.reset"]
    assert [text.index(name) for name in order] == sorted(text.index(name) for name in order)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan": fsdp1("", "0")}, "fsdp2 alone"),
        ({"world_size": 3}, "2 does not divide world_size=3"),
        ({"mesh": Mesh(replicate=2, shard=2)}, "not ranks with data of their own=2"),
        ({"mesh": Mesh(replicate=2, shard=1)}, None),
        ({"meta_init": MetaInit(by="assign")}, None),
        (
            {"checkpoints": (Checkpoint(path="0", kind="offload"),)},
            "activations that are offloaded",
        ),
        ({"program": (*ONCE, FullParams())}, "full_params goes with no tensor parallelism"),
        ({"program": (*ONCE, Step(), OptimState())}, None),
        ({"program": (*ONCE, Step(), Transfer(state=True))}, None),
        ({"program": (*ONCE, Clip(max_norm=1.0))}, None),
        ({"plan": fsdp2("2")}, "no unit manages '0'"),
        ({"model": SQUARE, "ties": (Tie(source="0.weight", target="2.weight"),)}, "tied parameter"),
        ({"program": (Forward(target="0"), Backward())}, "calls one of a pair by itself"),
        ({"model": Sequential(children=(Linear(out=5), Gain(), Linear(out=4)))}, "share evenly"),
        ({"model": Sequential(children=(Linear(out=6), Norm(), Linear(out=4)))}, "follows the fir"),
        ({"model": Sequential(children=(Norm(), Gain(), Linear(out=4)))}, "no linear and no embed"),
    ],
)
def test_what_goes_with_it(changes: dict[str, Any], said: str | None) -> None:
    case = cut(PAIR, **changes)
    if said is None:
        check(case)
        return
    with pytest.raises(CaseError, match=said):
        check(case)


def test_gradients_on_two_meshes_are_not_clipped_together() -> None:
    with pytest.raises(CaseError, match="on two meshes"):
        check(cut(COLUMNS, program=(*ONCE, Clip(max_norm=1.0))))


def test_what_it_puts_out_is_not_changed_in_place() -> None:
    model = Sequential(children=(InPlace(body=Linear(out=4)),))
    case = cut(Parallel(module="0.inner"), model=model, plan=fsdp2(""))
    with pytest.raises(CaseError, match="changed in place"):
        check(case)


def test_one_of_a_pair_is_not_called_by_the_module_around() -> None:
    body = Sequential(children=(Linear(out=4), Linear(out=4)))
    pair = Parallel(module="0.body.0", into="0.body.1")
    given: dict[str, Any] = {"plan": fsdp2(""), "inputs": Dense(width=4)}
    check(cut(pair, model=Sequential(children=(Repeat(body=body),)), **given))
    calls = Repeat(body=body, no_grad="first_child")
    with pytest.raises(CaseError, match="the module around it calls one of a pair"):
        check(cut(pair, model=Sequential(children=(calls,)), **given))


def test_nothing_twice_and_nothing_empty() -> None:
    with pytest.raises(CaseError, match="stands here twice"):
        check(cut(PAIR, ROWS))
    with pytest.raises(CaseError, match="leave it out"):
        check(cut())


def test_simpler_ones_have_less_of_it() -> None:
    case = cut(PAIR, program=(*ONCE, StateDict()))
    found = [s.case.tensor_parallel for s in TensorParallelDimension().simpler(case)]
    assert found == [
        None,
        TensorParallel(modules=(COLUMNS,)),
        TensorParallel(modules=(ROWS,)),
    ]
    two = [s.case for s in TensorParallelDimension().simpler(cut(COLUMNS, ROWS))]
    assert [s.tensor_parallel for s in two[1:]] == [
        TensorParallel(modules=(ROWS,)),
        TensorParallel(modules=(COLUMNS,)),
    ]
    assert all(map(is_sound, two))


@pytest.mark.parametrize(
    ("ranks", "replicate", "shard", "value"),
    [(8, 2, 2, "both"), (4, 2, 1, "one shard"), (4, 1, 2, "one replica"), (2, 1, 1, "one shard")],
)
def test_beside_a_mesh_of_replicas(ranks: int, replicate: int, shard: int, value: str) -> None:
    case = cut(PAIR, world_size=ranks, mesh=Mesh(replicate=replicate, shard=shard))
    check(case)
    assert features(case)["mesh"] == value
    assert anatomy(case).shards("") == shard
    whole, *_ = TensorParallelDimension().simpler(case)
    assert whole.case.mesh == Mesh(replicate=replicate, shard=shard * 2)
    check(whole.case)
    dimension = next(d for d in DIMENSIONS if d.name == "mesh")
    sizes = {s.case.world_size for s in dimension.simpler(case) if s.case.mesh is not None}
    assert all(size % 2 == 0 for size in sizes)
    moved = on_ranks(case, 2 * ranks)
    assert moved.mesh is not None
    assert moved.mesh.replicate * moved.mesh.shard == data_ranks(moved)


def test_other_numbers_of_ranks() -> None:
    dimension = next(d for d in DIMENSIONS if d.name == "tensor_parallel")
    case = cut(PAIR)
    assert dimension.on_ranks(case, 2) == case
    assert dimension.on_ranks(case, 3).tensor_parallel is None
