"""Communication hooks of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState

from fsdpfuzz.steps.lag import linger


def register(unit: Any, halves: bool = False) -> None:
    """Registers a hook that averages gradients as FSDP does, and ``halves`` them if asked to."""

    def reduce(group: dist.ProcessGroup, grad: Tensor, shard: Tensor | None = None) -> None:
        linger(grad.device)
        grad.div_(2 * group.size() if halves else group.size())
        if shard is None:  # the unit is not sharded
            dist.all_reduce(grad, group=group)
        else:
            dist.reduce_scatter_tensor(shard, grad, group=group)

    unit.register_comm_hook(dist.group.WORLD, reduce)


def register_default(unit: Any, hook: Callable[..., None]) -> None:
    """Registers one of PyTorch's own hooks, which average over the ranks of their state."""
    state = DefaultState(dist.group.WORLD)  # type: ignore[arg-type]
    unit.register_comm_hook(state, hook)
