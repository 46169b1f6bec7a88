"""``set_requires_gradient_sync`` of units that no one unit contains."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule


def tell(model: nn.Module, value: bool) -> None:
    """``set_requires_gradient_sync`` of every unit."""
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.set_requires_gradient_sync(value)
