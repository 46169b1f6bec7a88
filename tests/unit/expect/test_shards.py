"""What a rank holds where units lie over some of the ranks, or along another dimension."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Anatomy,
    Backward,
    CaseSpec,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Sequential,
    StateDict,
    Step,
    Switch,
    anatomy,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.units import Placement
from fsdpfuzz.expect import grad_bytes, is_cut, optional_keys, order_error, shard_bytes, state_keys

FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path=""),))


def fsdp1(**options: Any) -> Fsdp1Plan:
    return Fsdp1Plan(units=(Fsdp1Unit(path="", sharding="HYBRID_SHARD", **options),))


def case(plan: Plan, replicate: int, shard: int, **changes: object) -> Anatomy:
    """Weight 5 x 3 and bias 5."""
    made = CaseSpec(
        world_size=replicate * shard,
        model=Linear(out=5),
        inputs=Dense(width=3),
        plan=plan,
        program=(Forward(), Backward(), Step()),
        mesh=Mesh(replicate=replicate, shard=shard),
    )
    return anatomy(msgspec.structs.replace(made, **changes))


@pytest.mark.parametrize(
    ("shape", "held", "of_ranks"),
    [
        # chunks of 3 rows: 9 + 3 elements, of which the second shard has 2 rows
        ((2, 2), 12, [12, 8, 12, 8]),
        ((1, 2), 12, [12, 8]),
        ((2, 1), 20, [20, 20]),
        ((1, 3), 8, [8, 8, 4]),
    ],
)
def test_fsdp2_cuts_over_the_shard_axis(
    shape: tuple[int, int], held: int, of_ranks: list[int]
) -> None:
    a = case(FSDP2, *shape)
    assert shard_bytes(a) == 4 * held
    assert [grad_bytes(a, rank) // 4 for rank in range(len(of_ranks))] == of_ranks


@pytest.mark.parametrize(
    ("orig", "shape", "held", "of_ranks"),
    [
        (False, (2, 2), 10, [10, 10, 10, 10]),
        (False, (2, 1), 20, [20, 20]),
        # 15 + (1) + 5 + (1) elements, 11 a shard; the padding has no gradient
        (True, (2, 2), 11, [11, 9, 11, 9]),
        (True, (2, 1), 21, [20, 20]),
    ],
)
def test_fsdp1_cuts_over_the_shard_axis(
    orig: bool, shape: tuple[int, int], held: int, of_ranks: list[int]
) -> None:
    a = case(fsdp1(use_orig_params=orig), *shape)
    assert shard_bytes(a) == 4 * held
    assert [grad_bytes(a, rank) // 4 for rank in range(len(of_ranks))] == of_ranks


def test_a_unit_without_the_mesh_is_cut_over_all_ranks() -> None:
    units = (Fsdp1Unit(path="", sharding="HYBRID_SHARD"), Fsdp1Unit(path="0"))
    model = Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False)))
    a = case(Fsdp1Plan(units=units), 2, 2, model=model, inputs=Dense(width=4))
    assert shard_bytes(a) == 4 * (16 // 4 + 16 // 2)


def test_one_shard_is_the_whole() -> None:
    a = case(fsdp1(), 2, 1)
    op = StateDict(rank0_only=True)
    assert not is_cut(a, "")
    assert optional_keys(a, ["weight", "bias"], absent=True) == {"weight", "bias"}
    assert is_cut(case(fsdp1(), 1, 2), "")
    assert optional_keys(case(fsdp1(), 1, 2), ["weight", "bias"], absent=True) == set()
    assert state_keys(a, ["weight", "bias"], op, absent=False) == {"weight", "bias"}


@pytest.mark.parametrize(("dim", "held", "of_ranks"), [(0, 9 + 3, [12, 8]), (1, 10 + 3, [13, 12])])
def test_fsdp2_cuts_along_the_dimension_that_a_placement_says(
    dim: int, held: int, of_ranks: list[int]
) -> None:
    # weight 5 x 4 instead of 5 x 3 along 1; the bias keeps its rows
    width = 3 if dim == 0 else 4
    unit = Fsdp2Unit(path="", shard_placement=(Placement(parameter="weight", dim=dim),))
    a = case(Fsdp2Plan(units=(unit,)), 1, 2, inputs=Dense(width=width))
    assert shard_bytes(a) == 4 * held
    assert [grad_bytes(a, rank) // 4 for rank in (0, 1)] == of_ranks


@pytest.mark.parametrize(
    ("ranks", "everyone_raises"),
    [((0,), False), ((0, 2), True), ((1, 2), True), ((0, 1), False)],
)
def test_each_replica_compares_its_own_order(ranks: tuple[int, ...], everyone_raises: bool) -> None:
    """Where one replica agrees within itself its ranks raise nothing."""
    branch = Linear(out=3)
    model = Sequential(children=(Linear(out=3), Switch(children=(branch, branch))))
    paths = ("", "1.branches.0", "1.branches.1")
    units = tuple(Fsdp1Unit(path=path, sharding="HYBRID_SHARD") for path in paths)
    a = case(
        Fsdp1Plan(units=units),
        2,
        2,
        model=model,
        program=(Flip(path="1", ranks=ranks), Forward(), Backward()),
        debug_level="DETAIL",
    )
    assert order_error(a) == (1 if everyone_raises else None)
