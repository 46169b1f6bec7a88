"""What FSDP makes of a saved case is what was asked for, and each rank knows what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from fsdpfuzz.case import Anatomy, anatomy, foreseen_rejections, lower
from fsdpfuzz.case.recipe import Do, Operation, Recipe, With
from fsdpfuzz.expect import shard_bytes
from fsdpfuzz.ranks._execute import Execution
from fsdpfuzz.ranks._sharded import Sharded
from tests.unit.case.saved import documents, saved
from tests.unit.ranks.executed import Noting, built, environment
from tests.unit.steps.alone import as_rank

SMALL = 100_000
"""Elements of parameters up to which a case is looked at."""
OTHER_UNITS = (
    "fsdp1-low-precision-leaves",
    "fsdp1-low-precision-tied-leaves",
    "fsdp1-offloaded-change-behind-a-hook",
    "fsdp1-unit-without-elements",
    "fsdp2-replicated-allocated",
)
"""Known defects by which FSDP makes other units than it was told to, or raises as it makes them."""


def small(name: str) -> bool:
    a = anatomy(saved(name))
    # One process stands for a rank of all; it makes no mesh of more than one dimension.
    flat = a.case.mesh is None and a.case.tensor_parallel is None
    plain = flat and not foreseen_rejections(a) and name not in OTHER_UNITS
    return plain and sum(p.numel for p in a.distinct) <= SMALL


NAMES = [name for name in documents() if small(name)]


def untrained(recipe: Recipe) -> Recipe:
    """All that comes before the first operation."""
    first = [isinstance(s, Operation | With) or not isinstance(s, Do) for s in recipe.main]
    return replace(recipe, main=recipe.main[: first.index(True)] if True in first else recipe.main)


@contextmanager
def wrapped(a: Anatomy, rank: int) -> Iterator[Sharded]:
    """The model of a case as FSDP has it on a rank."""
    size = a.case.world_size
    with as_rank(rank, size):
        variables = Execution(
            recipe=untrained(lower(a)),
            env=environment(rank, size),
            role="fsdp",
            dtype=torch.float32,
            label="case",
            watcher=Noting(),
        ).run()
        yield Sharded(a, variables["model"], variables["named"])


def test_most_saved_cases_are_small() -> None:
    assert len(NAMES) > 100


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_holds_its_part_of_every_parameter(name: str) -> None:
    a = anatomy(saved(name))
    whole: nn.Module = built(a.case)
    for rank in {0, a.case.world_size - 1}:
        with wrapped(a, rank) as sharded:
            assert sorted(sharded.units) == sorted(a.units)
            names = {a.canonical(shard.name) for shard in sharded.shards}
            assert names == {p.fqn for p in a.distinct}
            for shard in sharded.shards:
                right = shard.same_part(whole.get_parameter(shard.name).detach())
                assert torch.equal(shard.values().flatten(), right.flatten()), shard.name
            assert sharded.unsharded() == ()
            if not a.split_ties:
                assert sharded.held_bytes() == shard_bytes(a)
