"""A layer that stands in its module under two names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class TwoNames(nn.Module):
    """Calls one layer by both of its names."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=bias)
        self.again = self.layer

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return call(self.again, torch.tanh(call(self.layer, x)))
