"""A linear layer whose weight is not contiguous."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Transposed(nn.Module):
    """A linear layer whose weight lies in memory by columns."""

    def __init__(self, width: int, out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(width, out) / width**0.5).T)
        self.bias = nn.Parameter(torch.randn(out) / width**0.5) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Last dimension ``width`` in, ``out`` out."""
        return functional.linear(x, self.weight, self.bias)
