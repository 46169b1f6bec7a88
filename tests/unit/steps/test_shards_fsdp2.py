"""Under fsdp2: which part of a parameter a rank holds, and which part of the whole that is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdpfuzz.steps import judging
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


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
def test_elements_that_differ_are_told_by_their_places(rank: int, world_size: int) -> None:
    """Each element has the number that its indices make."""
    with as_rank(rank, world_size):
        for name, p in wrapped().items():
            numbers = torch.arange(1.0, p.numel() + 1).view(p.shape)
            part = shards.same_part(numbers, p)
            told = judging.part_off(name, shards.offsets(p), part, torch.zeros_like(part))
            alike = judging.part_off(name, shards.offsets(p), part, part)
            everywhere = judging.whole_off(name, numbers, torch.zeros_like(numbers), 0.0)
            assert alike == []
            assert told == [everywhere[int(k) - 1] for k in part.flatten()]


def test_elements_are_told_by_their_indices() -> None:
    seen = torch.tensor([[1.0, 2.0], [float("nan"), 4.5]])
    told = judging.whole_off("0.weight", seen, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0.1)
    assert told == [
        "0.weight[1, 0] is nan, but should be 3",
        "0.weight[1, 1] is 4.5, but should be 4",
    ]
