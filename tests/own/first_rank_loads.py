"""A full state dict that is loaded on rank 0 only, and not broadcast: a mistake teams make."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard


def model() -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(step: int, rank: int) -> Tensor:
    """Random numbers."""
    return torch.randn(4, 6)


def shard(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Each layer is a unit."""
    fully_shard(model[0], mesh=mesh)
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)


def load(model: nn.Module, state: dict[str, Any]) -> None:
    """Rank 0 has read the file, and loads: it waits for ranks that do not take part."""
    if dist.get_rank() == 0:
        set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))


class Before:
    """Rank 0 loads before the model is wrapped, and the others keep what they drew."""

    @staticmethod
    def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Lacks ``sync_module_states=True``."""
        if dist.get_rank() == 0:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)
        return FSDP(model, device_mesh=mesh, device_id=torch.device(mesh.device_type))

    load = None


class Right:
    """Rank 0 alone has the state, and sends it to all others."""

    @staticmethod
    def load(model: nn.Module, state: dict[str, Any]) -> None:
        """All ranks take part."""
        mine = state if dist.get_rank() == 0 else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, mine, options=options)
