"""Trainings that name the same axes share a mesh, until its groups are gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from fsdpfuzz.ranks._execute import resolve
from fsdpfuzz.ranks._meshes import forget_meshes, keep_named
from fsdpfuzz.steps import spmd_mesh

CPU = torch.device("cpu")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The one rank of a process group."""
    monkeypatch.setattr(spmd_mesh, "named", spmd_mesh.named)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_each_makes_its_own_unless_they_are_kept() -> None:
    first = spmd_mesh.named(CPU, (1,), ("dp_shard",))
    assert spmd_mesh.named(CPU, (1,), ("dp_shard",)) is not first


@pytest.mark.usefixtures("alone")
def test_the_same_axes_are_one_mesh_and_others_another() -> None:
    keep_named()
    first = spmd_mesh.named(CPU, (1,), ("dp_shard",))
    assert first.mesh_dim_names == ("dp_shard",)
    assert spmd_mesh.named(CPU, (1,), ("dp_shard",)) is first
    assert spmd_mesh.named(CPU, (1, 1), ("dp_shard", "dp_inner")).ndim == 2
    forget_meshes()
    assert spmd_mesh.named(CPU, (1,), ("dp_shard",)) is not first


@pytest.mark.usefixtures("alone")
def test_ranks_look_it_up_where_it_is_kept() -> None:
    resolve.cache_clear()
    keep_named()
    assert resolve("steps.spmd_mesh.named") is spmd_mesh.named
    resolve.cache_clear()
