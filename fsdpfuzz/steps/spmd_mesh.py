"""A model whose parameters are DTensors on a mesh with named axes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor


def named(device: torch.device, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """All ranks, along axes with names."""
    return dist.init_device_mesh(device.type, shape, mesh_dim_names=names)  # type: ignore[attr-defined]


def spread(module: nn.Module, mesh: DeviceMesh, cut: Mapping[str, int] | None = None) -> None:
    """Puts a module's parameters on the mesh, to compute on DTensors of what it is given.

    Replicated, but those in ``cut`` are sharded along that dimension over the mesh's last axis, of
    which all ranks take the same rows. By hand, as ``distribute_module`` puts trainable parameters
    in place of frozen ones. The composable checkpoint calls a module again with DTensors.
    """
    rows: list[Placement] = [Shard(0)] * mesh.ndim
    if cut is not None:
        rows[-1] = Replicate()

    def before(_module: nn.Module, args: tuple[Tensor]) -> DTensor:
        (x,) = args
        return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, rows)

    for name, parameter in list(module.named_parameters(recurse=False)):
        places: list[Placement] = [Replicate()] * mesh.ndim
        if cut is not None and name in cut:
            places[-1] = Shard(cut[name])
        data = distribute_tensor(parameter.detach(), mesh, places, src_data_rank=None)
        setattr(module, name, nn.Parameter(data, parameter.requires_grad))
    module.register_forward_pre_hook(before)
    module.register_forward_hook(lambda *told: told[-1].redistribute(placements=rows).to_local())
