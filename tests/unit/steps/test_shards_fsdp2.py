"""Under fsdp2: which part of a parameter a rank holds, and which part of the whole that is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdpfuzz.steps import shards as plain
from fsdpfuzz.steps.fsdp2 import shards
from fsdpfuzz.steps.mesh import over_all
from tests.unit.steps.alone import CPU, RANKS, as_rank, gradients_of, uneven


def wrapped() -> dict[str, nn.Parameter]:
    """The parameters of a model that is one unit."""
    model = uneven()
    fully_shard(model, mesh=over_all(CPU))
    return dict(model.named_parameters())


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
def test_what_a_rank_holds_is_its_part_of_the_whole(rank: int, world_size: int) -> None:
    whole = uneven()
    with as_rank(rank, world_size):
        for name, p in wrapped().items():
            assert isinstance(p, DTensor)
            part = shards.same_part(whole.get_parameter(name), p)
            assert torch.equal(shards.value(p), part)


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
@pytest.mark.parametrize("lacking", [False, True])
def test_its_gradient_is_cut_in_the_same_way(rank: int, world_size: int, lacking: bool) -> None:
    whole = gradients_of(uneven())
    with as_rank(rank, world_size):
        for name, p in wrapped().items():
            part = shards.same_part(whole[name], p).clone()
            assert isinstance(p, DTensor)
            p.grad = DTensor.from_local(
                part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
            )
            assert torch.equal(shards.gradient(p, lacking), part)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_together_hold_every_element_once(world_size: int) -> None:
    parts: dict[str, list[Tensor]] = {}
    for rank in range(world_size):
        with as_rank(rank, world_size):
            for name, p in wrapped().items():
                numbered = torch.arange(p.numel()).view(p.shape)
                parts.setdefault(name, []).append(shards.same_part(numbered, p))
    sizes = {part.numel() for found in parts.values() for part in found}
    for name, found in parts.items():
        numel = uneven().get_parameter(name).numel()
        assert torch.cat(found).flatten().tolist() == list(range(numel))
    assert (0 in sizes) is (world_size > 1)


def test_zeros_stand_for_a_gradient_that_is_not_there() -> None:
    with as_rank(1, 2):
        for p in wrapped().values():
            held = shards.value(p)
            assert torch.equal(shards.gradient(p, True), torch.zeros_like(held))
            with pytest.raises(AttributeError):
                shards.gradient(p, False)


def test_what_a_rank_holds_whole_is_its_own_part() -> None:
    p = nn.Parameter(torch.ones(3))
    assert torch.equal(plain.gradient(p, True), torch.zeros(3))
    p.grad = torch.full((3,), 2.0)
    assert torch.equal(plain.gradient(p, True), torch.full((3,), 2.0))
    assert torch.equal(plain.gradient(p, False), torch.full((3,), 2.0))
    assert not plain.value(p).requires_grad
    assert torch.equal(plain.value(p), torch.ones(3))
