"""Learnt embeddings of positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """Adds a learnt embedding of each position."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        return x + self.table(torch.arange(x.shape[-2], device=x.device))
