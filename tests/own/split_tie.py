"""The decoder in units that part its tied embedding, a mistake that teams make."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.own.decoder import Layer, batch, model

__all__ = ["batch", "model", "shard"]


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Each layer, each linear layer and each embedding is a unit."""
    return FSDP(
        model,
        device_mesh=mesh,
        auto_wrap_policy=ModuleWrapPolicy({Layer, nn.Linear, nn.Embedding}),
        device_id=torch.device(mesh.device_type),
    )
