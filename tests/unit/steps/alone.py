"""Ranks of a process group that is not there: FSDP shards, and no collective does anything."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

CPU = torch.device("cpu")
RANKS = [(rank, world_size) for world_size in (1, 2, 3, 4) for rank in range(world_size)]


@contextmanager
def as_rank(rank: int, world_size: int) -> Iterator[None]:
    """Code in it is that rank."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    made = dist.init_device_mesh  # type: ignore[attr-defined]

    def mesh_of_this_rank(device: str, shape: tuple[int, ...]) -> DeviceMesh:
        # DTensor takes equal meshes for one and the same, and then for that of another rank.
        return made(device, shape, mesh_dim_names=(f"rank{rank}",))

    try:
        with (
            mock.patch.object(dist, "init_device_mesh", mesh_of_this_rank),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        dist.destroy_process_group()


def uneven() -> nn.Module:
    """Parameters of 5, 1 and 2 rows: uneven chunks, and fewer rows than ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1, bias=False), nn.Linear(1, 2))


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """A gradient for each parameter, of which no two elements are equal."""
    found, start = {}, 0
    for name, p in model.named_parameters():
        found[name] = torch.arange(start, start + p.numel(), dtype=p.dtype).view(p.shape) + 0.5
        start += p.numel()
    return found
