"""A container with a parameter of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Matrix(nn.Module):
    """A body, then a product with a parameter of the container itself."""

    offset: Tensor

    def __init__(self, body: nn.Module, width: int, buffered: bool = False) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.body = body
        self.buffered = buffered
        if buffered:
            self.register_buffer("offset", torch.linspace(-0.5, 0.5, width * width).view(width, -1))

    def forward(self, x: Tensor) -> Tensor:
        """Last dimension stays ``width``."""
        matrix = self.matrix + self.offset if self.buffered else self.matrix
        return call(self.body, x) @ matrix
