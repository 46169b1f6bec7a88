"""Buffers that take part."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Buffered(nn.Module):
    """Multiplies by a buffer; may count its forwards in train mode."""

    scale: Tensor
    calls: Tensor

    def __init__(self, width: int, persistent: bool = True, updates: bool = False) -> None:
        super().__init__()
        self.updates = updates
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width), persistent=persistent)
        if updates:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        if self.updates and self.training:
            self.calls += 1
        return x * self.scale
