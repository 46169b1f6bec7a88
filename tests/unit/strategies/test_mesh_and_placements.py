"""Meshes and placements are drawn in every form, with everything that goes with them."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpfuzz.case import CaseSpec, Fsdp2Unit, anatomy, check, features, foreseen_rejections
from fsdpfuzz.strategies import cases
from tests.unit.strategies import sample

NUMBER = 250


def drawn(world_size: int, api: str, seed: int = 3) -> list[CaseSpec]:
    strategy = cases(focus="state_dict", apis=(api,), world_sizes=(world_size,))
    return list(sample.drawn(strategy, NUMBER, seed).cases)


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize(
    ("world_size", "shapes"),
    [
        (2, {"one replica", "one shard"}),
        (3, {"one replica", "one shard"}),
        (4, {"both", "one replica", "one shard"}),
    ],
)
def test_a_mesh_has_every_shape(api: str, world_size: int, shapes: set[str]) -> None:
    seen = Counter(features(case)["mesh"] for case in drawn(world_size, api))
    assert set(seen) == {"no", *shapes}
    assert seen["no"] > NUMBER // 2
    assert all(seen[shape] >= NUMBER // 100 for shape in shapes)


def test_fsdp1_has_it_with_each_hybrid_strategy_and_beside_others() -> None:
    seen = Counter(
        features(case)["sharding"] for case in drawn(4, "fsdp1") if case.mesh is not None
    )
    assert set(seen) == {"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "mixed"}


def test_numbers_of_ranks_divide_the_shards() -> None:
    """Else the case would not be sound."""
    found = [case for case in drawn(4, "fsdp2") if case.mesh is not None]
    for case in found:
        check(case)
    assert any(features(case)["reshard_after_forward"] == "int" for case in found)


def test_placements_are_of_every_form_and_few_are_refused() -> None:
    # Hypothesis draws in clumps, and some forms are in three of a hundred cases.
    seeds = range(3, 7)
    number = len(seeds) * NUMBER
    found = [case for seed in seeds for case in drawn(2, "fsdp2", seed)]
    seen = Counter(features(case)["shard_placement"] for case in found)
    assert set(seen) >= {"off", "rows", "other", "mixed"}
    units = [unit for case in found for unit in case.plan.units if isinstance(unit, Fsdp2Unit)]
    assert {p.dim for unit in units for p in unit.shard_placement} >= {-2, -1, 0, 1}
    placed = [case for case in found if features(case)["shard_placement"] != "off"]
    assert number // 20 < len(placed) < number // 4
    for case in placed:
        check(case)
    refused = [
        case
        for case in placed
        if "fsdp2_uneven_placement" in {r.name for r in foreseen_rejections(anatomy(case))}
    ]
    assert len(refused) < len(placed) // 5
