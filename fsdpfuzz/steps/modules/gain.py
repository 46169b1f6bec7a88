"""One learnt number."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Gain(nn.Module):
    """Multiplies by one learnt number."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full(shape, 0.9))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return x * self.gain
