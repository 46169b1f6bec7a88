"""An optimizer that is made before the model is sharded, a mistake that teams make."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def model() -> nn.Sequential:
    """Three layers."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(step: int, rank: int) -> Tensor:
    """Random numbers."""
    return torch.randn(4, 6)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """As most people have it."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def shard(model: nn.Sequential, mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The optimizer holds the parameters that ``fully_shard`` replaces."""
    steps = optimizer(model.parameters())
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, steps


class Right:
    """The same in the right order."""

    @staticmethod
    def shard(model: nn.Sequential, mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The optimizer last."""
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, optimizer(model.parameters())
