"""Clipping by ``torch.nn.utils`` on ``FullyShardedDataParallel``, a mistake that teams make."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

MAX_NORM = 0.1


def model() -> nn.Sequential:
    """Three layers."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(step: int, rank: int) -> Tensor:
    """Random numbers."""
    return torch.randn(4, 6)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """One unit."""
    return FSDP(
        model,
        device_mesh=mesh,
        use_orig_params=True,
        device_id=torch.device(mesh.device_type),
    )


def clip(model: nn.Module) -> Tensor:
    """Each rank takes the norm of its own shards."""
    return torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)


def program() -> list[str]:
    """Two steps, each clipped."""
    return ["forward_backward", "clip", "step", "zero_grad", "forward_backward", "clip", "step"]


class Right:
    """By the model's own method where it has one."""

    @staticmethod
    def clip(model: nn.Module) -> Tensor:
        """The norm of all shards."""
        if isinstance(model, FSDP):
            return model.clip_grad_norm_(MAX_NORM)
        return torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
