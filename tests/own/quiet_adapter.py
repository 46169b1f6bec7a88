"""Adapters on a frozen base, behind reentrant checkpoints whose inputs need no gradient."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

WIDTH = 8


class Block(nn.Module):
    """A frozen layer with an adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        y: Tensor = torch.tanh(self.base(x)) + self.up(self.down(x))
        return y


def model() -> nn.Module:
    """Embedding, two blocks, a head."""
    return nn.Sequential(nn.Embedding(11, WIDTH), Block(), Block(), nn.Linear(WIDTH, 3))


def batch(step: int, rank: int) -> Tensor:
    """Tokens, which never require grad."""
    return torch.randint(0, 11, (2, 5))


def freeze(model: nn.Module) -> None:
    """All but the adapters and the head."""
    for name, p in model.named_parameters():
        p.requires_grad_("down" in name or "up" in name or name.startswith("3."))


def _sharded(model: nn.Module, mesh: DeviceMesh, how: CheckpointImpl) -> None:
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=partial(checkpoint_wrapper, checkpoint_impl=how),
        check_fn=lambda module: isinstance(module, Block),
    )
    for block in (model[1], model[2]):  # type: ignore[index]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Checkpoints each block, and makes it a unit."""
    _sharded(model, mesh, CheckpointImpl.REENTRANT)


class Right:
    """Without reentrance."""

    @staticmethod
    def shard(model: nn.Module, mesh: DeviceMesh) -> None:
        """As torch recommends."""
        _sharded(model, mesh, CheckpointImpl.NO_REENTRANT)
