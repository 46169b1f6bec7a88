"""Over a mesh of two axes, and along another dimension: which part of the whole a rank holds."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from fsdpfuzz.steps import mesh as meshes
from fsdpfuzz.steps.fsdp2 import shard_placement, shards
from tests.unit.steps.alone import CPU, as_rank


def even() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4, bias=False))


def wrapped(over: DeviceMesh, along: dict[str, int]) -> dict[str, nn.Parameter]:
    model = even()
    placements = {model.get_parameter(name): Shard(dim) for name, dim in along.items()}
    fully_shard(model, mesh=over, shard_placement_fn=shard_placement.of(placements))
    return dict(model.named_parameters())


@pytest.mark.parametrize("dim", [1, -1])
def test_a_placement_is_of_its_parameter_alone(dim: int) -> None:
    parts: list[Tensor] = []
    for rank in range(2):
        with as_rank(rank, 2):
            held = wrapped(meshes.over_all(CPU), {"0.weight": dim})
            p = held["0.weight"]
            assert isinstance(p, DTensor)
            assert p.placements == (Shard(1),)
            assert all(
                q.placements == (Shard(0),)  # type: ignore[attr-defined]
                for name, q in held.items()
                if name != "0.weight"
            )
            whole = even().get_parameter("0.weight")
            part = shards.same_part(whole, p)
            assert torch.equal(shards.value(p), part)
            assert not torch.equal(part, whole[:2])
            parts.append(part)
    assert torch.equal(torch.cat(parts, dim=1), even().get_parameter("0.weight"))


@pytest.mark.parametrize(("replicate", "shard"), [(2, 2), (1, 4), (4, 1)])
def test_replicas_lie_on_neighbouring_ranks(replicate: int, shard: int) -> None:
    whole = even().get_parameter("1.weight")
    for rank in range(4):
        with as_rank(rank, 4):
            made = _unnamed(rank)
            with mock.patch.object(dist, "init_device_mesh", made):
                over = meshes.replicated(CPU, replicate, shard)
            assert over.mesh.tolist() == torch.arange(4).view(replicate, shard).tolist()
            p = wrapped(over, {})["1.weight"]
            part = whole.chunk(shard)[rank % shard]
            assert torch.equal(shards.value(p), part)
            assert torch.equal(shards.same_part(whole, p), part)


def _unnamed(rank: int) -> object:
    """Makes meshes that DTensor does not take for those of another rank."""

    def made(device: str, shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...]) -> DeviceMesh:
        names = tuple(f"{name}{rank}" for name in mesh_dim_names)
        return dist.device_mesh.init_device_mesh(device, shape, mesh_dim_names=names)

    return made
