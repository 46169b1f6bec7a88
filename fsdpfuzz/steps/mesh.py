"""The mesh that units are sharded over."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


def over_all(device: torch.device) -> DeviceMesh:
    """All ranks in one dimension."""
    return dist.init_device_mesh(device.type, (dist.get_world_size(),))  # type: ignore[attr-defined]


def neighbours(device: torch.device, ranks: int) -> DeviceMesh:
    """This rank and its neighbours, so many in all."""
    names = ("others", "here")
    shape = (dist.get_world_size() // ranks, ranks)
    return dist.init_device_mesh(device.type, shape, mesh_dim_names=names)["here"]  # type: ignore[attr-defined]


def replicated(device: torch.device, replicate: int, shard: int) -> DeviceMesh:
    """Replicas of a model that each lie on neighbouring ranks."""
    names = ("replicate", "shard")
    return dist.init_device_mesh(device.type, (replicate, shard), mesh_dim_names=names)  # type: ignore[attr-defined]


def beside_tensors(device: torch.device, tensor: int) -> tuple[DeviceMesh, DeviceMesh]:
    """The axis of the data, and that of the ``tensor`` neighbours that share a batch."""
    names, shape = ("dp", "tp"), (dist.get_world_size() // tensor, tensor)
    mesh = dist.init_device_mesh(device.type, shape, mesh_dim_names=names)  # type: ignore[attr-defined]
    return mesh["dp"], mesh["tp"]


def replicated_beside_tensors(
    device: torch.device, replicate: int, shard: int, tensor: int
) -> tuple[DeviceMesh, DeviceMesh]:
    """The two axes of the data, and that of the ``tensor`` neighbours that share a batch."""
    names, shape = ("replicate", "shard", "tp"), (replicate, shard, tensor)
    mesh = dist.init_device_mesh(device.type, shape, mesh_dim_names=names)  # type: ignore[attr-defined]
    return mesh["replicate", "shard"], mesh["tp"]


def batch_of(rank: int, tensor: int) -> int:
    """The number of the batch that a rank shares with its neighbours."""
    return rank // tensor
